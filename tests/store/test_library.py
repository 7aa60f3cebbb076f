"""The store: listing, resolving, showing; damage; the demo pair."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from specd import core
from specd.errors import (
    InvalidName,
    ModelNotFound,
    StoreError,
    Unsupported,
)
from specd.store import Library
from specd.store.demo import stored_demo
from specd.store.gguf import read_header
from specd.store.gguf_metadata import GgufMetadata, metadata_of
from specd.store.shape import Shape, shape_of
from tests.gguf_files import CHAT_TEMPLATE, OllamaStore, byte_vocabulary, write_llama

BIG = byte_vocabulary().with_padding(1500)


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    return OllamaStore(tmp_path / "models")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "weights.gguf")


@pytest.fixture
def library(store: OllamaStore) -> Library:
    return Library(store.root, demo=False)


def names(library: Library) -> list[str]:
    return [summary.name for summary in library.list()]


@pytest.mark.contract("tags.order", "names.hf")
def test_models_are_listed_newest_first(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add("old", weights=weights, modified=1_000)
    store.add("user/new:7b", weights=weights, modified=3_000)
    store.add("hf.co/user/repo:Q8_0", weights=weights, modified=2_000)
    assert names(library) == ["user/new:7b", "hf.co/user/repo:Q8_0", "old:latest"]


@pytest.mark.contract("tags.digest", "tags.size", "tags.details")
def test_a_summary_has_ollamas_fields(store: OllamaStore, library: Library, weights: Path) -> None:
    digest = store.add("tiny", weights=weights, license="MIT", parent="parent:latest", modified=9)
    (summary,) = library.list()
    manifest = json.loads(store.manifest_path("tiny").read_bytes())
    layers = [manifest["config"], *manifest["layers"]]
    assert summary.digest == digest
    assert summary.size_bytes == sum(layer["size"] for layer in layers)
    assert summary.modified_at == datetime.fromtimestamp(9, UTC)
    assert summary.modified_at.tzinfo is not None
    details = summary.details
    assert (details.parent_model, details.format, details.family) == (
        "parent:latest",
        "gguf",
        "llama",
    )
    assert (details.families, details.parameter_size) == (("llama",), "37.12K")
    assert (details.quantization_level, details.context_length) == ("F32", 512)
    assert details.embedding_length == 32
    assert summary.capabilities == ("completion",)


def test_an_unknown_file_type_is_empty(
    store: OllamaStore, library: Library, tmp_path: Path
) -> None:
    odd = write_llama(tmp_path / "odd.gguf", file_type=9999)
    store.add("odd", weights=odd, config={"file_type": ""})
    assert library.list()[0].details.quantization_level == ""


@pytest.mark.contract("tags.details-gguf")
def test_the_gguf_supplies_what_the_config_lacks(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    silent = {"model_family": "", "model_families": None, "model_type": "", "file_type": None}
    store.add("tiny", weights=weights, config=silent)
    details = library.list()[0].details
    assert (details.family, details.families) == ("llama", None)
    assert (details.parameter_size, details.quantization_level) == ("37.98K", "F32")


def test_a_model_resolves_to_everything_a_request_needs(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add(
        "Tiny:q8",
        weights=weights,
        draft=weights,
        params={"temperature": 0.5, "stop": ["x"]},
        system="Be brief.",
        template="{{ .Prompt }}",
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}],
    )
    model = library.resolve("tiny:Q8")
    assert (model.name, model.full_name) == ("Tiny:q8", "registry.ollama.ai/library/Tiny:q8")
    assert model.weights == store.weights_path("Tiny:q8")
    assert model.draft == store.weights_path("Tiny:q8", "draft")
    assert (model.chat_template, model.go_template) == (CHAT_TEMPLATE, "{{ .Prompt }}")
    assert (model.bos_token, model.eos_token) == ("<|begin|>", "<|end|>")
    assert (model.system, model.parameters) == ("Be brief.", {"temperature": 0.5, "stop": ["x"]})
    assert model.messages == (
        core.Message(role="user", content="hi"),
        core.Message(role="assistant"),
    )
    assert (model.architecture, model.n_ctx_train) == ("llama", 512)


def test_a_model_with_only_a_go_template_uses_it(
    store: OllamaStore, library: Library, tmp_path: Path
) -> None:
    bare = write_llama(tmp_path / "bare.gguf", chat_template=None)
    template = "{{ if .Suffix }}{{ .Suffix }}{{ end }}{{ range .Tools }}{{ . }}{{ end }}"
    store.add("bare", weights=bare, template=template)
    model = library.resolve("bare")
    assert (model.chat_template, model.go_template) == (None, template)
    assert model.capabilities == ("completion", "tools", "insert")
    assert library.show("bare").template == template


def test_an_exact_spelling_wins_over_another_case(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add("model", weights=weights)
    store.add("Model", weights=weights)
    assert library.resolve("model").name == "model:latest"
    assert library.resolve("Model").name == "Model:latest"
    assert library.resolve("MODEL").name in {"model:latest", "Model:latest"}


@pytest.mark.parametrize("name", ["none", "tiny:8b", "user/tiny", "h" * 300 + "/user/tiny"])
def test_the_error_for_an_unknown_model_has_the_given_name(
    store: OllamaStore, library: Library, weights: Path, name: str
) -> None:
    store.add("tiny", weights=weights)
    with pytest.raises(ModelNotFound) as unknown:
        library.resolve(name)
    assert str(unknown.value) == f"model '{name}' not found"


def test_show_names_an_unknown_model_by_its_short_form(library: Library) -> None:
    with pytest.raises(ModelNotFound, match="model 'none:latest' not found"):
        library.show("none")


def test_an_invalid_name_is_refused(library: Library) -> None:
    with pytest.raises(InvalidName):
        library.resolve("foo bar")


@pytest.mark.contract("tags.remote", "names.remote")
def test_cloud_models_are_listed_but_not_resolved(store: OllamaStore, library: Library) -> None:
    remote = {"remote_host": "https://ollama.com:443", "remote_model": "big", "model_format": ""}
    store.add("big", weights=None, config=remote)
    (summary,) = library.list()
    assert (summary.remote_model, summary.remote_host) == ("big", "https://ollama.com:443")
    for refuse in (library.resolve, library.show):
        with pytest.raises(Unsupported, match="cloud is disabled"):
            refuse("big")
        with pytest.raises(Unsupported, match="cloud is disabled"):
            refuse("anything:cloud")


def test_a_resolved_model_has_its_adapters(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add("tuned", weights=weights)
    path = store.manifest_path("tuned")
    manifest = json.loads(path.read_bytes())
    layer = manifest["layers"][0]
    adapter = layer | {"mediaType": "application/vnd.ollama.image.adapter"}
    path.write_text(json.dumps(manifest | {"layers": [layer, adapter]}))
    assert library.resolve("tuned").adapters == (store.blob_path(layer["digest"]),)


def damage_manifest(store: OllamaStore) -> None:
    store.manifest_path("bad").write_text('{"layers": [')


def damage_digest(store: OllamaStore) -> None:
    path = store.manifest_path("bad")
    path.write_text(path.read_text().replace("sha256:", "md5:"))


def damage_config(store: OllamaStore) -> None:
    config = json.loads(store.manifest_path("bad").read_bytes())["config"]["digest"]
    store.blob_path(config).write_text("[]")


def mistype_config(store: OllamaStore) -> None:
    config = json.loads(store.manifest_path("bad").read_bytes())["config"]["digest"]
    store.blob_path(config).write_text('{"model_family": 7}')


def lose_config(store: OllamaStore) -> None:
    config = json.loads(store.manifest_path("bad").read_bytes())["config"]["digest"]
    store.blob_path(config).unlink()


def damage_weights(store: OllamaStore) -> None:
    os.truncate(store.weights_path("bad"), 100)


def lose_weights(store: OllamaStore) -> None:
    store.weights_path("bad").unlink()


DAMAGES = [
    damage_manifest,
    damage_digest,
    damage_config,
    mistype_config,
    lose_config,
    damage_weights,
    lose_weights,
]


@pytest.mark.contract("store.damage")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_does_not_affect_the_list_or_other_models(
    store: OllamaStore,
    library: Library,
    weights: Path,
    tmp_path: Path,
    damage: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.add("good", weights=weights)
    other = write_llama(tmp_path / "other.gguf", seed=1)
    store.add("bad", weights=other, config={"parser": "x"})
    assert callable(damage)
    damage(store)
    assert "good:latest" in names(library)
    assert library.resolve("good").name == "good:latest"
    with pytest.raises(StoreError):
        library.resolve("bad")
    logged = len(caplog.records)
    assert logged == 1
    names(library)
    assert len(caplog.records) == logged


@pytest.mark.parametrize("manifest_too", [True, False])
def test_weights_deleted_while_a_model_is_resolved_are_not_missing_capabilities(
    store: OllamaStore, weights: Path, *, manifest_too: bool
) -> None:
    """The weights are read more than once: the first read must not hide a later failure."""

    def read_once(path: Path) -> tuple[GgufMetadata, Shape]:
        header = read_header(path)
        path.unlink()
        if manifest_too:
            store.manifest_path("m").unlink()
        return metadata_of(header), shape_of(header)

    store.add("m", weights=weights)
    library = Library(store.root, demo=False, read=read_once)
    with pytest.raises(ModelNotFound if manifest_too else StoreError):
        library.resolve("m")


@pytest.mark.contract("store.safetensors")
@pytest.mark.parametrize(
    "layer,message",
    [("model", "names no weights"), ("tensor", "safetensors")],
)
def test_a_model_without_a_gguf_has_its_own_error(
    store: OllamaStore, library: Library, weights: Path, layer: str, message: str
) -> None:
    store.add("bad", weights=weights)
    path = store.manifest_path("bad")
    manifest = json.loads(path.read_bytes())
    kept = [] if layer == "model" else manifest["layers"]
    for entry in kept:
        entry["mediaType"] = f"application/vnd.ollama.image.{layer}"
    path.write_text(json.dumps(manifest | {"layers": kept}))
    with pytest.raises(StoreError, match=message):
        library.resolve("bad")


def test_a_damaged_params_layer_is_a_store_error(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add("bad", weights=weights, params={"x": 1})
    params = store.weights_path("bad", "params")
    params.write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        library.resolve("bad")


def test_other_files_among_the_manifests_are_ignored(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    store.add("tiny", weights=weights)
    (store.manifest_path("tiny").parent / ".DS_Store").write_text("x")
    (store.manifest_path("tiny").parent / "folder").mkdir()
    (store.root / "manifests" / "stray").write_text("x")
    assert names(library) == ["tiny:latest"]
    assert [name.short for name in library.names()] == ["tiny:latest"]


def test_a_changed_manifest_is_read_again(
    store: OllamaStore, library: Library, weights: Path
) -> None:
    first = store.add("tiny", weights=weights, modified=1)
    assert library.resolve("tiny").digest == first
    second = store.add("tiny", weights=weights, system="new", modified=2)
    assert library.resolve("tiny").digest == second != first
    store.manifest_path("tiny").unlink()
    assert names(library) == []


# ----------------------------------------------------------------------------------- show


@pytest.mark.contract("show.arrays", "show.requires", "show.model-info", "show.projector")
def test_show_returns_all_details(store: OllamaStore, library: Library, tmp_path: Path) -> None:
    weights = write_llama(tmp_path / "big.gguf", vocabulary=BIG, extra={"odd": float("inf")})
    store.add(
        "tiny",
        weights=weights,
        projector=weights,
        license=["MIT", "and more"],
        params={"temperature": 0.5},
        system="Be brief.",
        config={"requires": "0.20.0"},
    )
    info = library.show("TINY")
    assert (info.license, info.system, info.requires) == ("MIT\nand more", "Be brief.", "0.20.0")
    assert info.parameters == "temperature                    0.5"
    assert info.template == CHAT_TEMPLATE
    assert info.model_info["general.architecture"] == "llama"
    assert info.model_info["tokenizer.ggml.tokens"] is None
    assert info.model_info["odd"] is None
    assert isinstance(info.model_info["general.parameter_count"], int)
    assert not {"general.name", "tokenizer.chat_template"} & set(info.model_info)
    assert info.projector_info is not None
    assert info.summary.capabilities == ("completion", "vision")
    assert info.tensors[0].name == "token_embd.weight"
    assert info.modelfile.startswith("# Modelfile generated by")
    json.dumps(dict(info.model_info), allow_nan=False)


@pytest.mark.contract("show.arrays")
def test_verbose_show_returns_long_arrays(
    store: OllamaStore, library: Library, tmp_path: Path
) -> None:
    store.add("tiny", weights=write_llama(tmp_path / "big.gguf", vocabulary=BIG))
    tokens = library.show("tiny", verbose=True).model_info["tokenizer.ggml.tokens"]
    assert tokens == list(BIG.tokens)


# ----------------------------------------------------------------------------------- demo


@pytest.fixture
def demo_weights() -> None:
    if stored_demo() is None:
        pytest.skip("this copy of specd was built without the demo pair")


@pytest.mark.usefixtures("demo_weights")
def test_an_empty_store_lists_the_demo_pair(tmp_path: Path) -> None:
    library = Library(tmp_path / "nowhere")
    assert names(library) == ["specd-demo:latest"]
    model = library.resolve("specd-demo")
    assert model.draft is not None
    assert model.weights.is_file()
    assert model.draft.is_file()
    assert library.show("specd-demo").tensors


@pytest.mark.usefixtures("demo_weights")
def test_the_demo_is_not_listed_beside_models_but_resolves(
    store: OllamaStore, weights: Path
) -> None:
    store.add("tiny", weights=weights)
    library = Library(store.root)
    assert names(library) == ["tiny:latest"]
    assert library.resolve("Specd-Demo").name == "specd-demo:latest"


@pytest.mark.usefixtures("demo_weights")
def test_the_setting_lists_or_disables_the_demo(store: OllamaStore, weights: Path) -> None:
    store.add("tiny", weights=weights)
    assert "specd-demo:latest" in names(Library(store.root, demo=True))
    forbidden = Library(store.root, demo=False)
    with pytest.raises(ModelNotFound):
        forbidden.resolve("specd-demo")


def test_a_stored_model_with_the_demos_name_wins(store: OllamaStore, weights: Path) -> None:
    digest = store.add("specd-demo", weights=weights)
    assert Library(store.root).resolve("specd-demo").digest == digest
