"""Check a Modelfile's files before the upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specd.cli.create_body import CreateRequest
from specd.errors import InvalidRequest, SpecdError, StoreError
from specd.pairs import refusals
from specd.pairs.compatibility import difference
from specd.pairs.vocabulary import vocabulary_of
from specd.settings import Settings
from specd.store import Library
from specd.store.gguf import read_header
from specd.store.gguf_metadata import metadata_of


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
    for name, path in create_request.files["draft_files"].items():
        if _is_gguf(path) and (why := _refusal(target, name, path)):
            raise command.error(f"{why} (--force creates the model anyway)")


def _refusal(target: tuple[str, Path] | None, name: str, path: Path) -> str:
    """Return why the file cannot draft for the target, or for any model; "" if it can."""
    try:
        header = read_header(path)
        if refusal := refusals.of_drafter(name, metadata_of(header)):
            return refusal.detail
        found = target and difference(vocabulary_of(read_header(target[1])), vocabulary_of(header))
    except SpecdError as error:
        return refusals.unreadable(name, error).detail
    if not target or not found:
        return ""
    return refusals.of_vocabularies(target[0], name, found).detail


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
