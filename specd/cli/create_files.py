"""Check a Modelfile's files, and convert safetensors to GGUF files, before the upload."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.progress import Progress

from specd.cli.create_body import CreateRequest
from specd.converter import (
    ConversionSource,
    Environment,
    convert,
    find_environment,
    out_type,
    prepare,
)
from specd.errors import InstallError, InvalidRequest, SpecdError, StoreError
from specd.pairs import Vocabularies
from specd.settings import Settings
from specd.store import Library
from specd.store.gguf import read_header

_QUESTION = """\
llama.cpp's converter reads the safetensors, and it needs PyTorch.  pip would install it into
  {folder}
and nowhere else: about 200 MB to download and 1.2 GB on disk if pip finds PyTorch's build for
CPUs only, else up to 3 GB and 7 GB with NVIDIA's libraries (docs/safetensors.md)."""

_NO_TERMINAL = (
    "the converter is not installed, and there is no terminal to ask on;"
    " run `specd create --prepare-converter --yes`"
)


def check_files(create_request: CreateRequest) -> None:
    """Raise InvalidRequest, with file and line, for a file that cannot be part of a model.

    These are GGUFs that are damaged or truncated, and files of other formats, except those that
    belong to safetensors.
    """
    for field, files in create_request.files.items():
        has_safetensors = any(name.endswith(".safetensors") for name in files)
        for name, path in files.items():
            if not _is_gguf(path):
                if name.endswith(".gguf") or not has_safetensors:
                    raise create_request.named[field].error(
                        f"{path} is neither GGUF nor safetensors"
                    )
                continue
            try:
                read_header(path)
            except StoreError as error:
                raise create_request.named[field].error(str(error)) from error


def check_drafter(create_request: CreateRequest) -> None:
    """Raise InvalidRequest, with file and line, for a drafter that does not fit the model.

    The check is skipped if the model is neither a file nor in a store on this machine.
    """
    command = create_request.named.get("draft_files")
    if command is None:
        return
    target = next(_targets(create_request), None)
    vocabularies = Vocabularies(None)
    for name, path in create_request.files["draft_files"].items():
        if _is_gguf(path) and (refusal := vocabularies.refusal(name, path, target)):
            raise command.error(f"{refusal.detail} (--force creates the model anyway)")


def _targets(create_request: CreateRequest) -> Iterator[tuple[str, Path]]:
    """Yield name and weights of the model of FROM, if its GGUF is on this machine."""
    for name, path in create_request.files.get("files", {}).items():
        if _is_gguf(path) and read_header(path).text("general.type") in {"", "model"}:
            yield name, path
    base: str = create_request.fields.get("from", "")
    if base:
        settings = Settings()
        library = Library(settings.models, demo=settings.demo, go_template=settings.go_template)
        try:
            yield base, library.resolve(base).weights
        except SpecdError:
            return  # the daemon may run on another machine, or pull the model


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error


# --------------------------------------------------------------------------- conversion


def has_safetensors(create_request: CreateRequest) -> bool:
    return any(True for _ in _sources(create_request))


def check_safetensors(create_request: CreateRequest) -> None:
    """Raise InvalidRequest, with file and line, if a file that the conversion needs is missing."""
    for field, source in _sources(create_request):
        try:
            source.check()
        except InvalidRequest as error:
            raise create_request.named[field].error(str(error)) from error


def _sources(create_request: CreateRequest) -> Iterator[tuple[str, ConversionSource]]:
    """Yield each set of safetensors and the request field that names it."""
    config = create_request.files.get("files", {}).get("config.json")
    for field, files in create_request.files.items():
        if any(name.endswith(".safetensors") for name in files):
            base = config or files.get("config.json")
            yield field, ConversionSource(files=files, base=base, is_adapter=field == "adapters")


def prepare_environment(*, yes: bool) -> Environment:
    """Return the converter's environment; create it if the user agrees.  Raises InstallError."""
    folder = _folder()
    if (found := find_environment(folder)) is not None:
        return found
    typer.echo(_QUESTION.format(folder=folder))
    if not yes:
        if not sys.stdin.isatty():
            raise InstallError(_NO_TERMINAL)
        typer.confirm("Install it now?", abort=True)
    return prepare(folder)


async def replace_with_ggufs(
    create_request: CreateRequest,
    environment: Environment,
    bars: Progress,
    stack: contextlib.ExitStack,
) -> None:
    """Replace each set of safetensors with a GGUF file, which is deleted when `stack` closes.

    Raises InvalidRequest, with file and line, and EngineError.
    """
    for field, source in list(_sources(create_request)):
        command = create_request.named[field]
        # Next to the environment, because /tmp may be in memory.
        folder = tempfile.TemporaryDirectory(dir=_folder(), prefix="gguf-")
        scratch = Path(stack.enter_context(folder))
        target = scratch / f"{command.name}.gguf"
        asked = create_request.fields.get(
            "draft_quantize" if field == "draft_files" else "quantize", ""
        )
        file_type = "f32" if source.is_adapter else out_type(asked)
        bar = bars.add_task(f"converting {command.value}", total=None)
        steps = convert(source, target, environment=environment, file_type=file_type)
        try:
            async with contextlib.aclosing(steps):
                async for done, total in steps:
                    bars.update(bar, completed=done, total=total)
        except InvalidRequest as error:
            raise command.error(str(error)) from error
        create_request.files[field] = {target.name: target}


def _folder() -> Path:
    folder = Settings().converter_dir
    if folder is None:
        raise InstallError("cannot find a folder for the converter: set SPECD_CONVERTER_DIR")
    return folder
