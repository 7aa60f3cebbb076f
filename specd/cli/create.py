"""Implement `specd create`: create a model from a Modelfile, as `ollama create` does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import Progress

from specd.cli import create_body, modelfile
from specd.cli.client import Client, daemon_client
from specd.cli.formatting import make_console
from specd.cli.progress import make_bars, show_progress
from specd.cli.sync_client import DaemonRefused
from specd.errors import InvalidRequest

_STDIN = Path("-")
#: The prefix of the daemon's errors about the model of FROM.
_OF_FROM = ("pull model manifest: ", "model '")
_EXPERIMENTAL = (
    "--experimental is not supported: it would keep safetensors as they are, for an engine that"
    " specd does not have; create the model without it"
)


def create(
    model: Annotated[str, typer.Argument(help="The name of the new model.")] = "",
    file: Annotated[
        Path, typer.Option("--file", "-f", help="The Modelfile; `-` reads it from stdin.")
    ] = Path("Modelfile"),
    quantize: Annotated[
        str, typer.Option("--quantize", "-q", help="Quantize the weights, e.g. to Q4_K_M.")
    ] = "",
    draft_quantize: Annotated[
        str, typer.Option("--draft-quantize", help="Quantize the drafter's weights.")
    ] = "",
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Accept a drafter that does not fit the model.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Install the converter without asking first.")
    ] = False,
    prepare_converter: Annotated[
        bool,
        typer.Option(
            "--prepare-converter",
            help="Only install the safetensors converter (PyTorch), then exit.",
        ),
    ] = False,
    experimental: Annotated[bool, typer.Option("--experimental", hidden=True)] = False,
) -> None:
    from specd.cli import create_files

    if prepare_converter:
        typer.echo(f"the converter is ready: {create_files.prepare_environment(yes=yes).folder}")
        return
    if not model:
        raise typer.BadParameter(
            "the new model needs a name: specd create NAME", param_hint="MODEL"
        )
    if experimental:
        raise InvalidRequest(_EXPERIMENTAL)
    source = "stdin" if file == _STDIN else str(file)
    commands = modelfile.parse(modelfile.decode(_read(file)), source)
    create_request = create_body.create_request(commands, _folder(file))
    create_files.check_files(create_request)
    create_files.check_safetensors(create_request)
    if draft_quantize and "draft_files" not in create_request.files:
        raise InvalidRequest("--draft-quantize requires a DRAFT model")
    if quantize:
        create_request.fields["quantize"] = quantize
    if draft_quantize:
        create_request.fields["draft_quantize"] = draft_quantize
    console = make_console()
    with contextlib.ExitStack() as stack:
        if create_files.has_safetensors(create_request):
            environment = create_files.prepare_environment(yes=yes)
            with make_bars(console) as bars:
                asyncio.run(
                    create_files.replace_with_ggufs(create_request, environment, bars, stack)
                )
        if not force:
            create_files.check_drafter(create_request)
        asyncio.run(_create(daemon_client(), console, model, create_request))


def _read(file: Path) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror or error}") from error


def _folder(file: Path) -> Path:
    return Path.cwd() if file == _STDIN else file.resolve().parent


async def _create(
    client: Client, console: Console, model: str, create_request: create_body.CreateRequest
) -> None:
    async with client:
        body: dict[str, object] = {"model": model, **create_request.fields}
        with make_bars(console) as bars:
            for field, files in create_request.files.items():
                body[field] = {
                    name: await _upload(client, bars, path) for name, path in files.items()
                }
        try:
            await show_progress(console, client.progress("/api/create", body))
        except DaemonRefused as error:
            if "from" in create_request.named and str(error).startswith(_OF_FROM):
                raise create_request.named["from"].error(str(error)) from error
            raise


async def _upload(client: Client, bars: Progress, path: Path) -> str:
    """Upload the file unless the daemon has it, and return its digest."""
    with bars.open(path, "rb", description=f"reading {path.name}") as file:
        digest = await asyncio.to_thread(hashlib.file_digest, file, "sha256")  # type: ignore[arg-type]
    name = f"sha256:{digest.hexdigest()}"
    if not await client.has_blob(name):
        with bars.open(path, "rb", description=f"copying {path.name}") as file:
            await client.upload(name, _chunks(file))
    return name


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the content in pieces of 1 MiB; aiohttp's own are smaller and slower to send."""
    while chunk := await asyncio.to_thread(file.read, 1 << 20):
        yield chunk
