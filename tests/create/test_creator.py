"""Progress lines, layers and config of a create."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter, LlamaFileType

from specd import core
from specd.core import Progress
from specd.create import CreateRequest, Creator
from specd.create.model_parts import Base, gguf_part, type_of
from specd.create.text_layers import config_text
from specd.errors import InvalidRequest, ModelNotFound, StoreError
from specd.store import Library, StoreWriter
from specd.store.gguf import read_header
from specd.store.gguf_metadata import format_count
from tests.fast import computes_long
from tests.gguf_files import OllamaStore, Shape, write_llama, write_truncated

NO_DIGEST = "0000000000000000000"


def refuse_broken(template: str) -> None:
    if "{{" in template and "}}" not in template:
        raise InvalidRequest("template error: template: :1: unclosed action")


class Workshop:
    """A store with a creator, and uploads into it."""

    def __init__(self, root: Path) -> None:
        self.store = OllamaStore(root)
        self.writer = StoreWriter(root)
        self.library = Library(root, demo=False)
        self.creator = Creator(self.writer, check_template=refuse_broken)

    def upload(self, path: Path) -> str:
        return self.writer.put(path.read_bytes())[0]

    async def make(self, model: str = "m", **fields: Any) -> list[Progress]:
        request = CreateRequest(model=model, **fields)
        return [line async for line in self.creator.create(request)]

    def manifest(self, name: str = "m") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.manifest_path(name).read_bytes())
        return found

    def config(self, name: str = "m") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(self.manifest(name)["config"]["digest"]))
        return found

    def kinds(self, name: str = "m") -> list[str]:
        return [layer["mediaType"].rpartition(".")[2] for layer in self.manifest(name)["layers"]]

    def layer(self, kind: str, name: str = "m") -> bytes:
        index = self.kinds(name).index(kind)
        return self.blob(self.manifest(name)["layers"][index]["digest"])

    def blob(self, digest: str) -> bytes:
        return self.writer.blob_path(digest).read_bytes()


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "models")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target, a drafter, a LoRA for it, one for another architecture, and a projector."""
    folder = tmp_path_factory.mktemp("gguf")
    write_llama(folder / "target.gguf", file_type=LlamaFileType.ALL_F32)
    write_llama(folder / "draft.gguf", shape=Shape(n_layer=1), seed=1)
    write_small(folder / "lora.gguf", "llama", "adapter")
    write_small(folder / "other_lora.gguf", "qwen2", "adapter")
    write_small(folder / "projector.gguf", "clip", "mmproj")
    write_small(folder / "piece.gguf", "llama", "model", pieces=3)
    return folder


def write_small(path: Path, architecture: str, kind: str, pieces: int = 0) -> None:
    writer = GGUFWriter(path, architecture)
    writer.add_type(kind)
    if pieces:
        writer.add_uint16("split.count", pieces)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def statuses(lines: list[Progress]) -> list[str]:
    return [line.status.partition(" sha256:")[0] for line in lines]


# --------------------------------------------------------------------------- from files


@pytest.mark.contract(
    "create.from-files", "create.progress", "create.autodetect", "create.recompress"
)
async def test_create_from_an_uploaded_gguf(shop: Workshop, files: Path) -> None:
    digest = shop.upload(files / "target.gguf")
    lines = await shop.make(files={"target.gguf": digest})
    assert lines == [
        Progress(status="parsing GGUF"),
        Progress(status="validating GGUF model", digest=NO_DIGEST),
        Progress(status="verifying conversion"),
        Progress(status=f"using existing layer {digest}"),
        Progress(status="writing manifest"),
        Progress(status="success"),
    ]
    n_parameters = format_count(read_header(files / "target.gguf").parameter_count)
    config = (
        '{"model_format":"gguf","model_family":"llama","model_families":["llama"],'
        f'"model_type":"{n_parameters}","file_type":"F32","architecture":"amd64","os":"linux"}}\n'
    ).encode()
    manifest = (
        '{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
        '"config":{"mediaType":"application/vnd.docker.container.image.v1+json",'
        f'"digest":"sha256:{hashlib.sha256(config).hexdigest()}","size":{len(config)}}},'
        '"layers":[{"mediaType":"application/vnd.ollama.image.model",'
        f'"digest":"{digest}","size":{(files / "target.gguf").stat().st_size}}}]}}\n'
    )
    assert shop.blob(shop.manifest()["config"]["digest"]) == config
    assert shop.store.manifest_path("m").read_text() == manifest
    assert shop.library.resolve("m").weights == shop.writer.blob_path(digest)


@pytest.mark.contract("create.draft", "create.adapters")
async def test_create_from_all_kinds_of_files(shop: Workshop, files: Path) -> None:
    names = ("target", "projector", "lora", "draft")
    target, projector, lora, draft = (shop.upload(files / f"{name}.gguf") for name in names)
    await shop.make(
        files={"mmproj.gguf": projector, "target.gguf": target},
        adapters={"lora.gguf": lora},
        draft_files={"tiny.gguf": draft},
    )
    assert shop.kinds() == ["model", "projector", "adapter", "draft"]
    assert shop.config()["model_families"] == ["llama", "clip", "llama"]
    assert shop.config()["draft"] == {"model_format": "gguf", "architecture": "llama"}
    ref = shop.library.resolve("m")
    assert ref.draft == shop.writer.blob_path(draft)
    assert ref.adapters == (shop.writer.blob_path(lora),)
    assert ref.projector == shop.writer.blob_path(projector)


@pytest.mark.contract("create.fields")
async def test_a_request_adds_text_layers(shop: Workshop, files: Path) -> None:
    call = core.ToolCall(name="f", arguments={"z": 1, "a": 2}, id="call_1")
    lines = await shop.make(
        files={"target.gguf": shop.upload(files / "target.gguf")},
        template="{{ .Prompt }}!",
        system="Be <brief>.",
        licenses=("MIT", "Apache"),
        parameters={"temperature": 0.5, "stop": ["b", "a"], "num_ctx": 4096},
        messages=(
            core.Message(role="user", content="Hi", images=(b"png",)),
            core.Message(role="assistant", tool_calls=(call,)),
        ),
        renderer="r",
        parser="p",
        requires="0.1.0",
        info={"capabilities": ["tools"], "parameter_size": "9B", "context_length": 100.0, "x": 1},
    )
    assert statuses(lines)[3:] == [
        "using existing layer",
        *["creating new layer"] * 6,
        "writing manifest",
        "success",
    ]
    kinds = ["model", "template", "system", "license", "license", "params", "messages"]
    assert shop.kinds() == kinds
    assert shop.layer("template") == b"{{ .Prompt }}!"
    assert shop.layer("system") == b"Be <brief>."
    assert shop.layer("params") == b'{"num_ctx":4096,"stop":["b","a"],"temperature":0.5}\n'
    assert shop.layer("messages") == (
        b'[{"role":"user","content":"Hi","images":["cG5n"]},{"role":"assistant","content":"",'
        b'"tool_calls":[{"id":"call_1","function":{"index":0,"name":"f",'
        b'"arguments":{"z":1,"a":2}}}]}]\n'
    )
    config = shop.config()
    assert list(config) == [
        *("model_format", "model_family", "model_families", "model_type", "file_type"),
        *("renderer", "parser", "requires", "capabilities", "context_length"),
        *("architecture", "os"),
    ]
    assert config["model_type"] == "9B"
    assert config["capabilities"] == ["tools"]
    ref = shop.library.resolve("m")
    assert (ref.system, ref.renderer, ref.parser) == ("Be <brief>.", "r", "p")


# --------------------------------------------------------------------------- from a model


@pytest.mark.contract("create.from-model")
async def test_create_from_another_model(shop: Workshop, files: Path) -> None:
    shop.store.add(
        "base",
        weights=files / "target.gguf",
        draft=files / "draft.gguf",
        params={"temperature": 0.1, "seed": 7},
        system="Old.",
        template="{{ .Prompt }}",
        license="MIT",
        messages=[{"role": "user", "content": "Hi"}],
        config={"renderer": "r", "requires": "0.2.0"},
    )
    lines = await shop.make(
        base="Base", system="New.", parameters={"temperature": 0.9}, licenses=("Apache",)
    )
    assert statuses(lines) == [
        *["using existing layer"] * 5,
        *["creating new layer"] * 3,
        "writing manifest",
        "success",
    ]
    kinds = ["model", "draft", "template", "messages", "license", "system", "license", "params"]
    assert shop.kinds() == kinds
    parents = [layer.get("from") for layer in shop.manifest()["layers"]]
    assert parents == [*["base:latest"] * 5, None, None, None]
    assert shop.layer("params") == b'{"seed":7,"temperature":0.9}\n'
    assert shop.library.resolve("m").draft == shop.store.weights_path("base", "draft")
    assert (shop.config()["renderer"], shop.config()["requires"]) == ("r", "0.2.0")
    assert shop.library.list()[0].details.parent_model


async def test_the_requests_config_wins_over_the_bases(shop: Workshop, files: Path) -> None:
    config = {"renderer": "old", "parser": "old", "base_name": "old"}
    shop.store.add("base", weights=files / "target.gguf", config=config)
    await shop.make(base="base", renderer="new", info={"base_name": "new"})
    made = shop.config()
    assert (made["renderer"], made["parser"], made["base_name"]) == ("new", "old", "new")


def test_the_last_of_several_drafters_is_used(tmp_path: Path) -> None:
    parts = []
    for architecture in ("qwen2", "llama"):
        path = tmp_path / architecture
        write_small(path, architecture, "model")
        parts.append(gguf_part("draft", "sha256:" + "0" * 64, path, header=read_header(path)))
    config = json.loads(config_text(CreateRequest(model="m"), Base(), parts))
    assert config["draft"]["architecture"] == "llama"


def test_a_file_without_a_type_has_the_type_of_its_largest_tensor(tmp_path: Path) -> None:
    path = tmp_path / "silent.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("small", np.zeros(8, np.float32))
    writer.add_tensor("large", np.zeros(64, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert type_of(read_header(path)) == "F16"


@pytest.mark.contract("create.draft")
async def test_a_new_drafter_replaces_the_old_one(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf", draft=files / "target.gguf")
    draft = shop.upload(files / "draft.gguf")
    await shop.make(base="base", draft_files={"draft.gguf": draft})
    assert shop.kinds() == ["model", "draft"]
    assert shop.library.resolve("m").draft == shop.writer.blob_path(draft)


async def test_the_demo_can_be_a_base(shop: Workshop) -> None:
    await shop.make(base="specd-demo", system="Be brief.")
    assert shop.kinds() == ["model", "draft", "system"]
    assert shop.manifest()["layers"][0]["from"] == "specd-demo:latest"


@pytest.mark.contract("create.over")
async def test_create_over_a_model_removes_its_unused_blobs(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    await shop.make(base="base", system="Old.")
    old = shop.writer.blob_path(shop.manifest()["layers"][-1]["digest"])
    await shop.make("M", base="m", system="New.")
    assert not old.exists()
    assert shop.layer("system") == b"New."
    assert len(shop.library.list()) == 2


@pytest.mark.contract("create.from-pull")
async def test_a_missing_base_is_pulled(shop: Workshop, files: Path) -> None:
    with pytest.raises(ModelNotFound, match="model 'base:latest' not found"):
        await shop.make(base="base")
    asked = []

    async def pull(name: str) -> Any:
        asked.append(name)
        yield Progress(status="pulling manifest")
        shop.store.add("base", weights=files / "target.gguf")
        yield Progress(status="success")

    shop.creator = Creator(shop.writer, check_template=refuse_broken, pull=pull)
    lines = await shop.make(base="base")
    assert asked == ["registry.ollama.ai/library/base:latest"]
    assert statuses(lines) == [
        *("pulling manifest", "using existing layer", "writing manifest", "success"),
    ]
    assert statuses(await shop.make(base="base"))[0] == "using existing layer"
    assert len(asked) == 1


@pytest.mark.contract("create.remote")
async def test_a_remote_model_keeps_its_host(shop: Workshop) -> None:
    await shop.make(base="far", remote_host="ollama.com", info={"capabilities": ["completion"]})
    assert shop.manifest()["layers"] == []
    config = shop.config()
    assert (config["remote_host"], config["remote_model"]) == ("https://ollama.com:443", "far")
    assert shop.library.list()[0].remote_model == "far"


# --------------------------------------------------------------------------- refusals


@pytest.mark.contract(
    "create.errors.source",
    "create.errors.name",
    "create.errors.template",
    "create.quantize-types",
    "create.errors.draft",
    "create.bounds",
)
@pytest.mark.parametrize(
    "fields, text",
    [
        ({}, "neither 'from' or 'files' was specified"),
        ({"model": "a b", "base": "base"}, "invalid model name"),
        ({"model": "", "base": "base"}, "invalid model name"),
        ({"model": "m:cloud", "base": "base"}, "invalid model name"),
        ({"base": "a b"}, "invalid model name"),
        ({"base": "base", "template": "{{ .Prompt"}, "template error: template: :1: unclosed"),
        ({"base": "base", "quantize": "Q2_K"}, "unsupported quantization type Q2_K"),
        ({"base": "base", "draft_quantize": "Q8_0"}, "--draft-quantize requires a DRAFT model"),
        (
            {"base": "base", "remote_host": "h", "draft_quantize": "Q8_0"},
            "DRAFT cannot be used with remote models",
        ),
        (
            {"base": "base", "parameters": {"stop": "x"}},
            'option "stop" must be of type array',
        ),
        (
            {"base": "base", "licenses": tuple(map(str, range(100_000)))},
            "the model has 100000 licenses; the limit is 100",
        ),
        (
            {"files": {f"{i}.gguf": "sha256:" + "0" * 64 for i in range(1001)}},
            "the model has 1001 files; the limit is 1000",
        ),
        (
            {"base": "base", "parameters": {f"p{i}": 1 for i in range(257)}},
            "the model has 257 parameters; the limit is 256",
        ),
        (
            {"base": "base", "messages": (core.Message(role="user", content="a"),) * 1001},
            "the model has 1001 messages; the limit is 1000",
        ),
        ({"base": "base", "parameters": {"\n": 1}}, r'invalid parameter name "\\n"'),
        ({"base": "base", "parameters": {"seed\n": 1}}, r'invalid parameter name "seed\\n"'),
        ({"base": "base", "parameters": {"": 1}}, 'invalid parameter name ""'),
        (
            {"base": "base", "parameters": {"a" * 10**6: 1}},
            r'invalid parameter name "a{40}\\u2026"$',
        ),
        (
            {"base": "base", "messages": (core.Message(role="evil\n"),)},
            r'invalid message role "evil\\n"',
        ),
        (
            {"base": "base", "messages": (core.Message(role="a" * 10**6),)},
            r'invalid message role "a{40}\\u2026"$',
        ),
    ],
)
async def test_invalid_requests_fail_before_the_first_line(
    shop: Workshop, files: Path, fields: dict[str, Any], text: str
) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    await refused(shop, text, **fields)


@pytest.mark.contract(
    "create.errors.files", "create.errors.draft", "create.safetensors", "create.errors.adapters"
)
@pytest.mark.parametrize(
    "fields, text",
    [
        ({"files": {}}, "no files provided to convert"),
        ({"files": {"a.gguf": ""}}, "invalid digest format"),
        ({"files": {"/a.gguf": "target"}}, "file path must be relative"),
        ({"files": {"../a.gguf": "target"}}, "file path must be relative"),
        ({"files": {"a//b": "target"}}, "file path must be relative"),
        ({"files": {"a": "text"}}, "unknown type"),
        ({"files": {"a.gguf": "text"}}, "supplied file was not in GGUF format"),
        ({"files": {"a.safetensors": "text"}}, "the safetensors come without config.json"),
        ({"files": {"a.gguf": "sha256:" + "0" * 64}}, 'blob "sha256:0+" not found'),
        ({"files": {"a.gguf": "cut"}}, "is not a usable GGUF file"),
        ({"files": {"a.gguf": "piece"}}, "the GGUF is one of 3 parts"),
        ({"files": {"a.gguf": "lora"}}, "exactly one of the files must be a model, but 0 are"),
        ({"files": {"a": "target", "b": "draft"}}, "must be a model, but 2 are"),
        ({"base": "base", "adapters": {"a": "target"}}, "is not a LoRA adapter"),
        (
            {"base": "base", "adapters": {"a": "other_lora"}},
            "for the architecture qwen2, .* is llama",
        ),
        (
            {"base": "base", "adapters": {"a": "lora", "b": "other_lora"}},
            "only one adapter is currently supported",
        ),
        ({"base": "base", "draft_files": {"a": "lora"}}, "this GGUF is a adapter"),
        (
            {"base": "base", "draft_files": {"a": "target", "b": "draft"}},
            "only one draft model is currently supported",
        ),
        (
            {"base": "base", "draft_files": {"a": "draft"}, "remote_host": "h"},
            "DRAFT cannot be used with remote models",
        ),
    ],
)
async def test_invalid_files_are_refused(
    shop: Workshop, files: Path, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    write_truncated(tmp_path / "cut.gguf")
    known = {path.stem: path for folder in (files, tmp_path) for path in folder.glob("*.gguf")}
    for sent in fields.values():
        if isinstance(sent, dict):
            sent.update({k: shop.upload(known[v]) for k, v in sent.items() if v in known})
    await refused(shop, text, **fields)


async def refused(shop: Workshop, text: str, **fields: Any) -> None:
    """Assert that a create fails before its first line and leaves nothing."""
    before = sorted(shop.writer.root.rglob("*"))
    request = CreateRequest(**{"model": "m", **fields})
    async with aclosing(shop.creator.create(request)) as lines:
        with pytest.raises(InvalidRequest, match=text):
            await anext(lines)
    assert sorted(shop.writer.root.rglob("*")) == before


@computes_long
async def test_inherited_licenses_count_towards_the_limit(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    for i in range(2):
        await shop.make("base", base="base", licenses=tuple(f"{i} {j}" for j in range(100)))
    await refused_in_the_end(shop, "has 301 layers; the limit is 256", model="base", base="base")


async def refused_in_the_end(shop: Workshop, text: str, **fields: Any) -> None:
    """Assert that a create fails after its first line and leaves the store unchanged."""
    before = sorted(shop.writer.root.rglob("*"))
    with pytest.raises((InvalidRequest, StoreError), match=text):
        await shop.make(licenses=tuple(map(str, range(100))), **fields)
    assert sorted(shop.writer.root.rglob("*")) == before


async def test_a_failed_create_leaves_no_blobs(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    folder = shop.store.manifest_path("m").parent
    folder.touch()  # in place of the folder of its tags
    await refused_in_the_end(shop, "cannot write", base="base")


class SlowWriter(StoreWriter):
    """Writer whose second blob waits for `go`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.n_put, self.reached, self.go = 0, threading.Event(), threading.Event()

    def put(self, data: bytes) -> tuple[str, bool]:
        self.n_put += 1
        if self.n_put == 2:
            self.reached.set()
            assert self.go.wait(30)
        return super().put(data)


async def test_closing_the_generator_cancels_the_create(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    before = sorted(shop.writer.root.rglob("*"))
    writer = SlowWriter(shop.writer.root)
    creator = Creator(writer, check_template=refuse_broken)
    request = CreateRequest(model="m", base="base", licenses=tuple(map(str, range(100))))
    lines = creator.create(request)
    waiting = asyncio.ensure_future(anext(lines))
    await asyncio.to_thread(writer.reached.wait, 30)
    waiting.cancel()
    writer.go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert writer.n_put == 2
    assert sorted(shop.writer.root.rglob("*")) == before


async def test_a_base_without_its_blobs_is_an_error(shop: Workshop, files: Path) -> None:
    shop.store.add("base", weights=files / "target.gguf")
    shop.store.weights_path("base").unlink()
    with pytest.raises(StoreError, match="cannot read"):
        await shop.make(base="base")
