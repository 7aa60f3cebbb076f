"""A store written by specd is, byte for byte, one written by the contract's rules (4 and 2.7).

The writer below knows the rules alone, and nothing of specd's code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import LlamaFileType

from specd.core import Message
from specd.create import CreateRequest, Creator
from specd.store import StoreWriter
from tests.gguf_files import write_llama

MEDIA = "application/vnd.ollama.image."


class ByTheRules:
    """Return the files by their path below the store's root."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def layer(self, kind: str, data: bytes, **more: str) -> dict[str, Any]:
        found = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256-{found}"] = data
        media = MEDIA + kind if "/" not in kind else kind
        return {"mediaType": media, "digest": f"sha256:{found}", "size": len(data), **more}

    def model(self, path: str, config: dict[str, Any], layers: Sequence[dict[str, Any]]) -> None:
        fields = config | {"architecture": "amd64", "os": "linux"}
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": self.layer("application/vnd.docker.container.image.v1+json", line(fields)),
            "layers": layers,
        }
        self.files[f"manifests/registry.ollama.ai/{path}"] = line(manifest)


def line(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for char, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(char, escape)
    return text.encode() + b"\n"


def files_of(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.mark.contract("store.bytes", "store.layout", "store.private", "names.case")
async def test_created_models_match_the_contracts_bytes(tmp_path: Path) -> None:
    target = write_llama(tmp_path / "target.gguf", file_type=LlamaFileType.ALL_F32)
    draft = write_llama(tmp_path / "draft.gguf", seed=1)
    writer = StoreWriter(tmp_path / "models")
    creator = Creator(writer, check_template=lambda _: None)

    async def make(**fields: Any) -> None:
        assert [line async for line in creator.create(CreateRequest(**fields))]

    await make(
        model="Mine:V1",
        files={"target.gguf": writer.put(target.read_bytes())[0]},
        draft_files={"draft.gguf": writer.put(draft.read_bytes())[0]},
        template="{{ .Prompt }}",
        system="<Be> brief & é.",
        licenses=("MIT",),
        parameters={"temperature": 0.70, "stop": ["<|end|>"], "num_ctx": 2048, "top_p": 1.0},
        messages=(Message(role="user", content="Hi"),),
    )
    await make(model="ns/child", base="mine:v1", parameters={"seed": 3})

    rules = ByTheRules()
    n_parameters = sum(tensor_sizes(target))
    config = {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": f"{n_parameters / 1000:.2f}K",
        "file_type": "F32",
        "draft": {"model_format": "gguf", "architecture": "llama"},
    }
    options = {"num_ctx": 2048, "stop": ["<|end|>"], "temperature": 0.7, "top_p": 1}
    shared = [
        ("model", target.read_bytes()),
        ("draft", draft.read_bytes()),
        ("template", b"{{ .Prompt }}"),
        ("system", "<Be> brief & é.".encode()),
        ("license", b"MIT"),
    ]
    params, messages = line(options), line([{"role": "user", "content": "Hi"}])
    own = [rules.layer(*entry) for entry in (*shared, ("params", params), ("messages", messages))]
    rules.model("library/Mine/V1", config, own)
    parent = {"from": "Mine:V1"}
    taken = [rules.layer(kind, data, **parent) for kind, data in (*shared, ("messages", messages))]
    sorted_options = line(dict(sorted((options | {"seed": 3}).items())))
    rules.model("ns/child/latest", config, [*taken, rules.layer("params", sorted_options)])
    assert files_of(tmp_path / "models") == rules.files


def tensor_sizes(path: Path) -> list[int]:
    """Return the elements of each tensor, read with the gguf package."""
    from gguf import GGUFReader  # noqa: PLC0415 - it brings much along

    return [int(tensor.n_elements) for tensor in GGUFReader(path).tensors]
