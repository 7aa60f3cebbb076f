"""Return specs that load files of every kind that an engine supports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf import PoolingType

import specd
from specd.core import EngineSpec
from tests import gguf_architectures, gguf_embedders, gguf_files

DEMO = Path(specd.__file__).parent / "demo"


def small_models(folder: Path) -> Iterator[tuple[str, EngineSpec]]:
    """Yield a name and a spec for every architecture and embedding model that the tests write."""
    yield "demo", EngineSpec(weights=str(DEMO / "target.gguf"), drafter=str(DEMO / "drafter.gguf"))
    shape = gguf_architectures.SMALL
    files = {
        "llama": gguf_files.write_llama(folder / "llama.gguf", shape=shape),
        "qwen2vl": gguf_architectures.write_qwen2vl(folder / "qwen2vl.gguf", shape=shape),
        "mamba": gguf_files.write_mamba(folder / "mamba.gguf", n_embd=64),
    }
    for name, write in gguf_architectures.WRITERS.items():
        files[name] = write(folder / f"{name}.gguf")
    for name, path in files.items():
        yield name, EngineSpec(weights=str(path), drafter=str(path))
    heads = gguf_architectures.write_qwen35(folder / "heads.gguf", heads=True)
    yield "qwen35, heads", EngineSpec(weights=str(heads))
    window = gguf_architectures.write_lfm2(folder / "window.gguf", sliding_window=64)
    yield "lfm2, window", EngineSpec(weights=str(window))
    embedders = {
        "bert": gguf_embedders.write_bert(folder / "bert.gguf", shape=shape),
        "t5encoder": gguf_embedders.write_t5_encoder(folder / "t5.gguf", shape=shape),
        "gemma3, mean": gguf_architectures.write_gemma3(
            folder / "mean.gguf", pooling=PoolingType.MEAN
        ),
        "llama, last": gguf_embedders.write_decoder(
            folder / "last.gguf", pooling=PoolingType.LAST, shape=shape
        ),
    }
    for name, path in embedders.items():
        yield name, EngineSpec(weights=str(path), embeds=True)
