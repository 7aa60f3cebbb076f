"""Translate a Modelfile's commands into a body for `/api/create` and a list of files to upload."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specd import options
from specd.cli.modelfile import Command
from specd.errors import InvalidRequest

log = logging.getLogger(__name__)

_TEXTS: Final = {"system", "template", "renderer", "parser"}
#: A value that starts or ends like this is a path, not a model's name.
_PATH: Final = re.compile(r"^(\.{0,2}/|~)|\.(gguf|safetensors)$")
_FILE_FIELDS: Final = {"from": "files", "adapter": "adapters", "draft": "draft_files"}


@dataclass(slots=True)
class CreateRequest:
    """The request to create a model.

    fields: the body's fields.  files: body field → name in the request → path on disk.
    named: body field → the command that names its files or its base model.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    named: dict[str, Command] = field(default_factory=dict)


def create_request(commands: Sequence[Command], folder: Path) -> CreateRequest:
    """Return the request for these commands.  folder: the base of relative paths.

    Raises InvalidRequest, with the command's file and line, in Ollama's words.
    """
    request = CreateRequest()
    for command in commands:
        match command.name:
            case "from" | "adapter" | "draft":
                _add_file(request, command, folder)
            case "license":
                request.fields.setdefault("license", []).append(command.value)
            case "message":
                turn = {"role": command.key, "content": command.value}
                request.fields.setdefault("messages", []).append(turn)
            case "parameter":
                _add_parameter(request.fields.setdefault("parameters", {}), command)
            case "requires":
                request.fields["requires"] = command.value.removeprefix("v")
            case name:
                assert name in _TEXTS
                request.fields[name] = command.value
    return request


# ------------------------------------------------------------------------------- files


def _add_file(request: CreateRequest, command: Command, folder: Path) -> None:
    """Add the file of a FROM, ADAPTER or DRAFT.

    A FROM without such a file is a model's name, unless it looks like a path.
    """
    path = folder / _expand_path(command)
    if not path.exists():
        if command.name != "from" or _PATH.search(command.value):
            raise command.error(f"no such file: {command.value}")
        request.fields["from"] = command.value
        request.named["from"] = command
        return
    found = dict(_files_of(path, command))
    field_name = _FILE_FIELDS[command.name]
    request.named[field_name] = command
    if command.name == "from":
        request.files.setdefault(field_name, {}).update(found)
    else:
        request.files[field_name] = found  # the last one counts


def _expand_path(command: Command) -> Path:
    try:
        return Path(command.value).expanduser()
    except RuntimeError as error:  # ~user for an unknown user
        raise command.error(f"no such file: {command.value}") from error


def _files_of(path: Path, command: Command) -> Iterator[tuple[str, Path]]:
    """Yield name in the request and path on disk for a file, or for all weights in a folder."""
    if path.is_file():
        yield path.name, path
        return
    found = sorted(path.glob("*.gguf"))
    if not found and any(path.glob("*.safetensors")):
        from specd.converter import is_convertible_file

        found = sorted(
            file for file in path.iterdir() if is_convertible_file(file.name) and file.is_file()
        )
    if not found:
        raise command.error(f"no model files in {path}")
    yield from ((file.name, file) for file in found)


# -------------------------------------------------------------------------- parameters


def _integer(text: str) -> int:
    """Return the integer; also reads 1e+06, the form in which `show` prints a large one."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if not value.is_integer():  # also rejects nan and infinity
        raise ValueError
    return int(value)


def _flag(text: str) -> bool:
    """Return the boolean, as Go's strconv.ParseBool reads it."""
    if text in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if text in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise ValueError


#: Per option type: its name in Ollama's errors, and the function that reads its text.
_READERS: Final[Mapping[type, tuple[str, Callable[[str], object]]]] = {
    int: ("int", _integer),
    float: ("float", float),
    bool: ("bool", _flag),
    tuple: ("string", str),
}


def _add_parameter(parameters: dict[str, object], command: Command) -> None:
    """Add a PARAMETER.  `stop` may occur several times; for others the last one counts."""
    name = command.key
    if name in options.DEPRECATED:
        log.warning("the parameter %s is deprecated and has no effect", name)
        return
    try:
        value = read_parameter(name, command.value)
    except InvalidRequest as error:
        raise command.error(str(error)) from error
    if name == "stop":
        stops = parameters.setdefault("stop", [])
        assert isinstance(stops, list)
        stops.append(value)
    else:
        parameters[name] = value


def read_parameter(name: str, text: str) -> object:
    """Return the parameter's value.  Raises InvalidRequest for an unknown name or a bad value."""
    if name not in options.TYPES:
        raise InvalidRequest(f"unknown parameter '{name}'")
    kind, read = _READERS[options.TYPES[name]]
    try:
        return read(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {kind} value [{text}]") from error
