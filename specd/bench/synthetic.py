"""A target of real size that says what a small one says: the same function, padded with weights.

Time and memory are those of a dense model of that many parameters, the text is the small model's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import gguf
import numpy as np
import typer

from specd.bench import padding
from specd.bench.shape import Shape, scaled
from specd.errors import SpecdError, StoreError

#: Part of a cached file's name: raise it when the same shape would be filled differently.
_FORMAT = 1
_SPARE_BYTES = 64 << 20

Plan = list[padding.Matrix | padding.Norm]


def write_synthetic(
    source: Path,
    destination: Path,
    n_parameters: int,
    progress: Callable[[float], None] = lambda _: None,
) -> Shape:
    """Write the padded model; `progress` hears the written share.  The shape that it got.

    StoreError: a source that is no dense llama in Q8_0, or no room or right to write the result.
    """
    reader = _open(source)
    small = read_shape(reader, source)
    large = scaled(small, n_parameters)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    plan = [*padding.plan(small, large)]
    _refuse_what_is_not_planned(source, tensors, plan)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _check_room(destination, sum(entry.n_bytes for entry in plan))
        with _whole_or_not_at_all(destination) as path:
            _write(path, reader, small, large, plan, progress)
    except OSError as error:
        raise StoreError(f"{destination} cannot be written: {error.strerror}") from error
    return large


def cached(
    source: Path, n_parameters: int, progress: Callable[[float], None] = lambda _: None
) -> Path:
    """The padded model of that size from the cache, written on first use."""
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    large = scaled(read_shape(_open(source), source), n_parameters)
    name = f"{digest[:16]}-{large.n_embd}x{large.n_layers}x{large.n_ff}-v{_FORMAT}.gguf"
    path = cache_directory() / name
    if not path.exists():
        write_synthetic(source, path, n_parameters, progress)
    return path


def cache_directory() -> Path:
    # No setting of specd: the desktop's own convention for files that can be made again.
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "specd" / "bench"


def parse_count(text: str) -> int:
    """A number of parameters: `1e9`, `1b`, `350M`, `1000000`.  ValueError for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kmb]?)", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no number of parameters; try 1b or 350m")
    count = int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2]])
    if count <= 0:
        raise ValueError("the number of parameters must be positive")
    return count


def read_shape(reader: Any, source: Path) -> Shape:
    """Sizes of a dense llama.  StoreError for every other architecture."""

    def value(key: str, default: int | None = None) -> int:
        field = reader.get_field(key)
        found = field.contents() if field is not None else default
        if not isinstance(found, int):
            raise StoreError(f"{source}: metadata has no number under {key}")
        return found

    architecture = reader.get_field("general.architecture")
    if architecture is None or architecture.contents() != "llama":
        raise StoreError(f"{source}: only a llama can be padded")
    n_embd = value("llama.embedding_length")
    n_heads = value("llama.attention.head_count")
    return Shape(
        n_embd=n_embd,
        n_layers=value("llama.block_count"),
        n_ff=value("llama.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=value("llama.attention.head_count_kv", n_heads),
        head_dim=value("llama.attention.key_length", n_embd // n_heads),
        n_vocab=len(reader.get_field("tokenizer.ggml.tokens").data),
        has_output=any(tensor.name == "output.weight" for tensor in reader.tensors),
    )


# --------------------------------------------------------------------------- the file


def _open(source: Path) -> Any:
    try:
        return gguf.GGUFReader(source)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise StoreError(f"{source}: cannot be read as GGUF: {error}") from error


def _refuse_what_is_not_planned(source: Path, tensors: dict[str, Any], plan: Plan) -> None:
    planned = {entry.source: entry for entry in plan if entry.source is not None}
    if unknown := tensors.keys() - planned.keys():
        raise StoreError(f"{source}: only a plain dense llama can be padded: {min(unknown)}")
    if missing := planned.keys() - tensors.keys():
        raise StoreError(f"{source}: the weight {min(missing)} is missing")
    for name, entry in planned.items():
        wanted = "Q8_0" if isinstance(entry, padding.Matrix) else "F32"
        if (found := tensors[name].tensor_type.name) != wanted:
            raise StoreError(f"{source}: {name} must be {wanted}, it is {found}")


@contextmanager
def _whole_or_not_at_all(destination: Path) -> Iterator[Path]:
    """A file beside the destination that becomes it, or vanishes if the block fails."""
    handle, name = tempfile.mkstemp(dir=destination.parent, suffix=".part")
    os.close(handle)
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # mkstemp keeps others out
        path.replace(destination)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_room(destination: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < n_bytes + _SPARE_BYTES:
        raise StoreError(
            f"{destination.parent} has {free / 1e9:.1f} GB free,"
            f" the synthetic model takes {n_bytes / 1e9:.1f} GB"
        )


def _write(
    path: Path,
    reader: Any,
    small: Shape,
    large: Shape,
    plan: Plan,
    progress: Callable[[float], None],
) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    try:
        _add_metadata(writer, reader, small, large)
        for entry in plan:
            is_matrix = isinstance(entry, padding.Matrix)
            kind = gguf.GGMLQuantizationType.Q8_0 if is_matrix else gguf.GGMLQuantizationType.F32
            writer.add_tensor_info(entry.name, entry.shape, np.int8, entry.n_bytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        sources = {tensor.name: tensor.data for tensor in reader.tensors}
        noise = padding.Noise()
        for i, entry in enumerate(plan):
            source = sources.get(entry.source)
            if isinstance(entry, padding.Matrix):
                writer.write_tensor_data(padding.filled(entry, noise, source))
            else:
                writer.write_tensor_data(padding.gains(source, small, large))
            progress((i + 1) / len(plan))
    finally:
        writer.close()


def _add_metadata(writer: Any, reader: Any, small: Shape, large: Shape) -> None:
    """The source's own, its tokenizer and template included, but for the sizes and the name."""
    count = gguf.GGUFValueType.UINT32
    sizes = {
        "embedding_length": large.n_embd,
        "block_count": large.n_layers,
        "feed_forward_length": large.n_ff,
        "attention.head_count": large.n_heads,
        "attention.head_count_kv": large.n_kv_heads,
        "attention.key_length": large.head_dim,
        "attention.value_length": large.head_dim,
    }
    eps_key = "llama.attention.layer_norm_rms_epsilon"
    replaced = {f"llama.{key}": (value, count) for key, value in sizes.items()} | {
        eps_key: (
            reader.get_field(eps_key).contents() * small.n_embd / large.n_embd,
            gguf.GGUFValueType.FLOAT32,
        ),
        "general.name": (
            f"{_text(reader, 'general.name')} (synthetic {large.label}, padded)",
            gguf.GGUFValueType.STRING,
        ),
        "general.size_label": (large.label, gguf.GGUFValueType.STRING),
    }
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "general.alignment"}:
            continue
        if key not in replaced:
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
    for key, (value, kind) in replaced.items():
        writer.add_key_value(key, value, kind)


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    return str(field.contents()) if field is not None else "a model"


# --------------------------------------------------------------------------- by hand


def _main(
    source: Path,
    destination: Path,
    parameters: Annotated[str, typer.Option(help="how many: 1e9, 1b, 350m")] = "1b",
) -> None:
    """Write a padded copy of a small model: the same text at a large model's price."""
    try:
        large = write_synthetic(source, destination, parse_count(parameters))
    except (SpecdError, ValueError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{destination}: {large.describe()}")


if __name__ == "__main__":
    typer.run(_main)
