"""Write the models of the soak into a store."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final

import gguf

from benchmarks.soak.request_mix import OTHER, PAIR, VECTORS
from specd.bench.gguf_cache import copy_metadata, open_gguf
from specd.bench.synthetic import write_synthetic
from tests.gguf_embedders import write_bert
from tests.gguf_files import OllamaStore, Shape, write_llama

_N_PARAMETERS: Final = 16_000_000
#: Large enough to need some time and memory.
_LLAMA: Final = Shape(n_embd=128, n_layer=4, n_head=4, n_ff=256, n_ctx=16_384)
_BERT: Final = Shape(n_embd=64, n_layer=2, n_head=2, n_ff=128, n_ctx=512)


def write_models(folder: Path) -> dict[str, str]:
    """Write the store folder/models; return model → file of its weights.

    The pair is the demo pair.  Its target is padded until a drafter pays, since a machine drops a
    pair that loses.  Its weights are written as 32-bit floats: with 8-bit activations, a batch of
    another width would change answers at near ties, which looks like one answer disturbing another.
    """
    demo = Path(str(resources.files("specd") / "demo"))
    store = OllamaStore(folder / "models")
    padded = folder / "padded.gguf"
    write_synthetic(demo / "target.gguf", padded, _N_PARAMETERS)
    target = write_as_f32(padded, folder / "pair.gguf")
    store.add(PAIR, weights=target, draft=demo / "drafter.gguf")
    store.add(OTHER, weights=write_llama(folder / "other.gguf", shape=_LLAMA, seed=1))
    store.add(VECTORS, weights=write_bert(folder / "vectors.gguf", shape=_BERT))
    return {name: store.weights_path(name).name for name in (PAIR, OTHER, VECTORS)}


def write_as_f32(source: Path, destination: Path) -> Path:
    """Write the model with all weights as F32.  Raises StoreError for a file that is no GGUF."""
    reader = open_gguf(source)
    writer = gguf.GGUFWriter(destination, "llama")
    copied = [key for key in reader.fields if not key.startswith(("GGUF.", "general.architecture"))]
    copy_metadata(writer, reader, [key for key in copied if key != "general.file_type"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return destination
