"""Write stores of big models that take no disk space: the weights are holes in sparse files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFWriter

from tests.gguf_files import VOCABULARY, OllamaStore, Vocabulary, add_general, add_vocabulary

#: Parameters of one layer.
_ROWS = 256


def write_sparse(
    path: Path,
    n_parameters: float,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    architecture: str = "llama",
    n_expert_parameters: float = 0,
    experts: tuple[int, int] = (0, 0),
    extra: Mapping[str, int] | None = None,
) -> Path:
    """Write a header, and one byte per parameter as a hole; return the path.

    experts: the number of experts, and how many of them a token uses.
    """
    writer = GGUFWriter(path, architecture)
    add_general(writer, path.stem)
    writer.add_context_length(512)
    writer.add_block_count(1)
    writer.add_embedding_length(_ROWS)
    if experts[0]:
        writer.add_expert_count(experts[0])
        writer.add_expert_used_count(experts[1])
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    add_vocabulary(writer, vocabulary, None)
    parts = {"blk.0.ffn_up.weight": n_parameters, "blk.0.ffn_up_exps.weight": n_expert_parameters}
    for name, n in parts.items():
        shape = (int(n) // _ROWS, _ROWS)
        if n:
            n_bytes = shape[0] * shape[1]
            writer.add_tensor_info(name, shape, "int8", n_bytes, GGMLQuantizationType.I8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + int(n_parameters + n_expert_parameters) + 64)
    return path


class SparseStore(OllamaStore):
    """A store that moves blobs into place and hashes only the bytes before the holes."""

    def put(self, name: str, weights: Path, *, draft: Path | None = None) -> Path:
        """Store the model and return the blob of its weights."""
        layers, blobs = [], []
        for kind, path in (("model", weights), ("draft", draft)):
            if path is None:
                continue
            blobs.append(self._blob(path))
            layers.append(
                {
                    "mediaType": f"application/vnd.ollama.image.{kind}",
                    "digest": blobs[-1].name.replace("-", ":"),
                    "size": blobs[-1].stat().st_size,
                }
            )
        config = b'{"model_format": "gguf"}'
        digest = hashlib.sha256(config).hexdigest()
        self.blob_path(digest).write_bytes(config)
        manifest = self.manifest_path(name)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(
            json.dumps(
                {
                    "schemaVersion": 2,
                    "config": {
                        "mediaType": "config",
                        "digest": f"sha256:{digest}",
                        "size": len(config),
                    },
                    "layers": layers,
                }
            )
        )
        return blobs[0]

    def _blob(self, path: Path) -> Path:
        if path.parent == self.root / "blobs":
            return path
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(1 << 20)).hexdigest()
        return path.rename(self.blob_path(digest))
