"""Several layers of one kind, and old kinds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from specd.store import Library
from tests.gguf_files import OllamaStore, write_llama

MEDIA = "application/vnd.ollama.image."


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    store = OllamaStore(tmp_path / "models")
    weights = write_llama(tmp_path / "m.gguf", chat_template=None)
    store.add("m", weights=weights, draft=weights, template="first", system="one", license="MIT")
    return store


def append(store: OllamaStore, kind: str, data: bytes) -> Path:
    """Append a layer to the model "m"; return its blob."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    store.blob_path(digest).write_bytes(data)
    path = store.manifest_path("m")
    manifest = json.loads(path.read_bytes())
    manifest["layers"].append({"mediaType": MEDIA + kind, "digest": digest, "size": len(data)})
    path.write_text(json.dumps(manifest))
    return store.blob_path(digest)


@pytest.mark.contract("store.last-wins")
def test_the_last_layer_counts_but_licenses_and_adapters_accumulate(
    store: OllamaStore, tmp_path: Path
) -> None:
    draft = append(store, "draft", write_llama(tmp_path / "d.gguf", seed=9).read_bytes())
    append(store, "template", b"second")
    append(store, "system", b"two")
    append(store, "license", b"BSD")
    append(store, "embed", b"ignored")
    loras = tuple(append(store, "adapter", data) for data in (b"lora", b"another"))
    library = Library(store.root, demo=False)
    model = library.resolve("m")
    assert model.draft == draft
    assert (model.go_template, model.system) == ("second", "two")
    assert model.adapters == loras
    assert library.show("m").license == "MIT\nBSD"


@pytest.mark.contract("store.old-template")
def test_an_old_prompt_layer_is_a_template(store: OllamaStore) -> None:
    append(store, "prompt", b"{{ .Prompt }} of old")
    assert Library(store.root, demo=False).resolve("m").go_template == "{{ .Prompt }} of old"
