"""Safetensors on this machine, made GGUFs before they are copied to the daemon."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import typer
from rich.progress import Progress

from specd.cli.create_body import Wanted
from specd.converter import Environment, Source, convert, environment_in, out_type, prepare
from specd.errors import InstallError, InvalidRequest
from specd.settings import Settings

_QUESTION = """\
Safetensors are converted by llama.cpp's converter, which needs PyTorch.  pip would put it into
  {folder}
and nowhere else: some 200 MB to download and 1.2 GB on disk where pip finds PyTorch's build for
processors alone, else up to 3 GB and 7 GB with NVIDIA's libraries (docs/safetensors.md)."""


def has_safetensors(wanted: Wanted) -> bool:
    return any(name.endswith(".safetensors") for files in wanted.files.values() for name in files)


def prepared(*, yes: bool) -> Environment:
    """Return the converter's environment, made now if the user agrees.  Raises InstallError."""
    folder = _folder()
    if (found := environment_in(folder)) is not None:
        return found
    typer.echo(_QUESTION.format(folder=folder))
    if not yes:
        if not sys.stdin.isatty():
            raise InstallError("nobody is there to ask; --yes prepares it without")
        typer.confirm("Prepare it now?", abort=True)
    return prepare(folder)


async def with_ggufs(
    wanted: Wanted, environment: Environment, bars: Progress, stack: contextlib.ExitStack
) -> None:
    """Put a GGUF in the place of each set of safetensors; the files last as long as `stack`.

    Raises InvalidRequest, with file and line, and EngineError.
    """
    config = wanted.files.get("files", {}).get("config.json")
    for field, files in wanted.files.items():
        if not any(name.endswith(".safetensors") for name in files):
            continue
        command = wanted.named[field]
        is_adapter = field == "adapters"
        source = Source(
            files=files, base=(config or files.get("config.json")), is_adapter=is_adapter
        )
        scratch = Path(stack.enter_context(_scratch()))
        target = scratch / f"{command.name}.gguf"
        asked = wanted.fields.get("draft_quantize" if field == "draft_files" else "quantize", "")
        file_type = "f32" if is_adapter else out_type(asked)
        bar = bars.add_task(f"converting {command.value}", total=None)
        steps = convert(source, target, environment=environment, file_type=file_type)
        try:
            async with contextlib.aclosing(steps):
                async for done, total in steps:
                    bars.update(bar, completed=done, total=total)
        except InvalidRequest as error:
            raise command.error(str(error)) from error
        wanted.files[field] = {target.name: target}


def _scratch() -> contextlib.AbstractContextManager[str]:
    import tempfile

    # Beside the environment: /tmp may be memory.
    return tempfile.TemporaryDirectory(dir=_folder(), prefix="gguf-")


def _folder() -> Path:
    folder = Settings().converter_dir
    if folder is None:
        raise InstallError("no home for the converter: set SPECD_CONVERTER_DIR")
    return folder
