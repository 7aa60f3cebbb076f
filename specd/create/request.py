"""The request of `/api/create`, and the checks that need no work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specd import core, options
from specd.errors import InvalidName, InvalidOption, InvalidRequest
from specd.store import ModelSource, Name, blobs
from specd.store.name import parse

FILE_TYPES: Final = ("F32", "F16", "BF16", "Q8_0", "Q4_K_S", "Q4_K_M")
_ALIASES: Final = {"Q4_K": "Q4_K_M"}

#: Each license is a separate file in the store, with an fsync.
MAX_LICENSES: Final = 100
#: The largest models have about 200 files.
MAX_FILES: Final = 1000
MAX_PARAMETERS: Final = 256
#: They are part of every prompt of the model.
MAX_MESSAGES: Final = 1000
#: Names as in a Modelfile, and llama-server's names such as `speculative.n_max`.
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_ROLE: Final = 64
_MAX_SHOWN: Final = 40

#: Raises InvalidRequest, "template error: ...", if a Go template does not parse.
CheckTemplate = Callable[[str], None]
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """A request of `/api/create`.

    base: `from`.  files, adapters, draft_files: digests of blobs by file name.
    quantize, draft_quantize: as sent; "" leaves the weights as they are.
    info: values that override fields of the config.
    """

    model: str
    base: str = ""
    files: Files | None = None
    adapters: Files = field(default_factory=dict)
    draft_files: Files = field(default_factory=dict)
    quantize: str = ""
    draft_quantize: str = ""
    template: str = ""
    system: str = ""
    licenses: tuple[str, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[core.Message, ...] = ()
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: Mapping[str, object] = field(default_factory=dict)
    remote_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRequest:
    """The parsed values of a valid request.

    file_type, draft_type: one of FILE_TYPES, or "".
    """

    name: Name
    base: Name | None
    file_type: str
    draft_type: str

    def type_of(self, kind: str) -> str:
        """Return the type to quantize a layer of that kind to, "" to leave it."""
        return {"model": self.file_type, "draft": self.draft_type}.get(kind, "")


def check(request: CreateRequest, check_template: CheckTemplate) -> ValidatedRequest:
    """Validate a request.  Raises InvalidRequest with Ollama's texts, in Ollama's order."""
    _check_counts(request)
    for files in (request.files or {}, request.adapters, request.draft_files):
        _check_files(files)
    name = parse(request.model)
    if name.source is ModelSource.CLOUD:
        raise InvalidName("invalid model name")
    if not request.base and request.files is None:
        raise InvalidRequest("neither 'from' or 'files' was specified")
    base = parse(request.base) if request.base else None
    if len(request.adapters) > 1 and not has_safetensors(request.adapters):
        raise InvalidRequest("only one adapter is currently supported")
    if len(request.draft_files) > 1 and not has_safetensors(request.draft_files):
        raise InvalidRequest("only one draft model is currently supported")
    if request.remote_host and (request.draft_files or request.draft_quantize):
        raise InvalidRequest("DRAFT cannot be used with remote models")
    if request.template:
        check_template(request.template)
    _check_parameters(request.parameters)
    _check_roles(request.messages)
    return ValidatedRequest(
        name=name,
        base=base,
        file_type=_file_type(request.quantize),
        draft_type=_file_type(request.draft_quantize),
    )


def has_safetensors(files: Files) -> bool:
    return any(name.endswith(".safetensors") for name in files)


def _check_counts(request: CreateRequest) -> None:
    """Raise InvalidRequest for more parts than a model may have."""
    files = (request.files or {}, request.adapters, request.draft_files)
    for what, n, most in (
        ("licenses", len(request.licenses), MAX_LICENSES),
        ("files", sum(map(len, files)), MAX_FILES),
        ("parameters", len(request.parameters), MAX_PARAMETERS),
        ("messages", len(request.messages), MAX_MESSAGES),
    ):
        if n > most:
            raise InvalidRequest(f"the model has {n} {what}; the limit is {most}")


def _check_files(files: Files) -> None:
    for path, digest in files.items():
        # The same rule as Go's fs.ValidPath.
        if path != "." and any(part in {"", ".", ".."} for part in path.split("/")):
            raise InvalidRequest("file path must be relative")
        if not blobs.is_digest(digest):
            raise InvalidRequest("invalid digest format")


def _check_parameters(parameters: Mapping[str, object]) -> None:
    """Raise InvalidRequest for a value that would make every later request fail.

    Ollama stores such values.
    """
    for name in parameters:
        if not _PARAMETER.fullmatch(name):
            raise InvalidRequest(f"invalid parameter name {_quoted(name)}")
    try:
        options.parse(parameters)
    except InvalidOption as error:
        raise InvalidRequest(str(error)) from error


def _check_roles(messages: Sequence[core.Message]) -> None:
    """Raise InvalidRequest for a role that a Modelfile cannot have; templates may add roles."""
    for message in messages:
        if len(message.role) > _MAX_ROLE or not message.role.isprintable():
            raise InvalidRequest(f"invalid message role {_quoted(message.role)}")


def _quoted(text: str) -> str:
    """Return the text as JSON, shortened if it is long."""
    return json.dumps(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def _file_type(text: str) -> str:
    file_type = _ALIASES.get(text.upper(), text.upper())
    if file_type and file_type not in FILE_TYPES:
        raise InvalidRequest(
            f"unsupported quantization type {text} - supported types are {', '.join(FILE_TYPES)}"
        )
    return file_type
