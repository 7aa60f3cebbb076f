"""Damaged files in the store: only the damaged model fails, with a clear error."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.faults.disks import Served, served
from tests.gguf_files import OllamaStore, write_llama
from tests.registry.fake_registry import FakeRegistry

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

Damage = Callable[[Path], None]
DEEP: Final = b'{"a":' * 200_000
#: No answer in these tests takes long, so a hanging one runs into this limit.
PATIENCE_S: Final = 30


# --------------------------------------------------------------------------- damages of any file


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    """Flip a bit near the start of the file."""
    data = bytearray(path.read_bytes())
    data[8] ^= 0x40
    path.write_bytes(data)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def huge(path: Path) -> None:
    """Make the file huge but sparse, so that it takes no disk space."""
    os.truncate(path, 2**40)


def missing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(target: str) -> Damage:
    def linked(path: Path) -> None:
        path.unlink()
        path.symlink_to(target if target != "itself" else path)

    linked.__name__ = f"a_link_to_{target.removeprefix('/').replace('/', '_')}"
    return linked


def holding(name: str, data: bytes) -> Damage:
    def written(path: Path) -> None:
        path.write_bytes(data)

    written.__name__ = name
    return written


FILES: Final = (
    *(truncated, flipped, empty, huge, missing, a_folder, a_pipe),
    *(a_link("/dev/zero"), a_link("/etc/passwd"), a_link("/nowhere"), a_link("itself")),
    holding("deep", DEEP),
    holding("no_text", b"\xff\xfe\x00" * 100),
)


def manifest_with(name: str, **changes: object) -> Damage:
    """config, layers: in place of the manifest's; of a layer, fields in place of the first's."""

    def changed(path: Path) -> None:
        manifest = json.loads(path.read_bytes())
        for key, value in changes.items():
            if key == "layer":
                manifest["layers"][0] |= value
            else:
                manifest[key] = value
        path.write_text(json.dumps(manifest))

    changed.__name__ = name
    return changed


NOWHERE: Final = f"sha256:{'0' * 64}"
MANIFESTS: Final = (
    manifest_with("of_another_media_type", layer={"mediaType": "text/plain"}),
    manifest_with("without_media_type", layer={"mediaType": None}),
    manifest_with("of_a_missing_blob", layer={"digest": NOWHERE}),
    manifest_with("out_of_the_store", layer={"digest": "sha256:../../../../etc/passwd"}),
    manifest_with("below_nothing", layer={"size": -1}),
    manifest_with("of_a_size_in_words", layer={"size": "long"}),
    manifest_with("endless", layer={"size": 2**63}),
    manifest_with("without_layers", layers=None),
    manifest_with("of_no_list", layers={"a": 1}),
    manifest_with("without_config", config=None),
    manifest_with("of_a_missing_config", config={"mediaType": "x", "digest": NOWHERE}),
)
CONFIGS: Final = (
    holding("a_list", b"[]"),
    holding("of_numbers", b'{"model_family": 1, "capabilities": "x"}'),
)
PARAMETERS: Final = (
    holding("a_list", b"[1]"),
    holding("unknown", b'{"num_ctx": "many", "stop": 7, "nothing": null}'),
)


def cases() -> dict[str, tuple[str, Damage]]:
    """Return, by model name, which file is damaged and how."""
    found = {}
    for what, damages in {
        "manifest": (*FILES, *MANIFESTS),
        "model": FILES,
        "config": (*FILES, *CONFIGS),
        "params": (*FILES, *PARAMETERS),
        "template": FILES,
        "license": FILES,
    }.items():
        for damage in damages:
            found[f"{what}-{damage.__name__}"] = what, damage
    return found


CASES: Final = cases()
QUICK: Final = ("-a_pipe", "-deep", "-huge", "-empty")


def add(store: OllamaStore, name: str, number: int, weights: Path) -> None:
    """Add a model that shares only undamaged layers with other models."""
    what, damage = CASES[name]
    store.add(
        name,
        weights=write_llama(weights, chat_template=None, seed=number)
        if what == "model"
        else weights.with_name("m.gguf"),
        template=f"{{{{ .Prompt }}}}{number}",
        license=f"license {number}",
        params={"seed": number},
        config={"model_type": f"{number}M"},
    )
    damage(file_of(store, name, what))


def file_of(store: OllamaStore, name: str, what: str) -> Path:
    manifest = store.manifest_path(name)
    if what == "manifest":
        return manifest
    said = json.loads(manifest.read_bytes())
    if what == "config":
        return store.blob_path(said["config"]["digest"])
    return store.weights_path(name, what)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Serve a store with all damaged models and the sound models "m" and "other"."""
    folder = tmp_path_factory.mktemp("damaged")
    store = OllamaStore(folder / "models")
    write_llama(folder / "m.gguf", chat_template=None)
    for number, name in enumerate(CASES, 100):
        add(store, name, number, folder / "w.gguf")
    async with served(folder) as daemon:
        yield daemon


async def test_undamaged_models_are_listed_and_answer(here: Served) -> None:
    names = await asyncio.wait_for(here.names(), PATIENCE_S)
    assert {"m:latest", "other:latest"} < set(names)
    damaged = {name for name, (what, _) in CASES.items() if what == "manifest"}
    assert {name.removesuffix(":latest") for name in names} & damaged <= {
        *(f"manifest-{name}" for name in ("of_another_media_type", "of_a_missing_blob")),
        "manifest-without_layers",
    }
    await here.is_well()


@pytest.mark.parametrize(
    "name",
    [
        name if name.endswith(QUICK) else pytest.param(name, marks=pytest.mark.system)
        for name in CASES
    ],
)
async def test_a_damaged_model_answers_or_gets_a_clear_error(here: Served, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        bodies: dict[str, dict[str, Any]] = {
            "/api/show": {},
            "/api/generate": {"prompt": "a word", "stream": False},
            "/v1/chat/completions": {"messages": [{"role": "user", "content": "a word"}]},
            "/api/create": {"from": name, "model": f"from-{name}", "stream": False},
        }
        for path, body in bodies.items():
            async with here.daemon.http.post(path, json={"model": name} | body) as response:
                said = await response.text()
            assert "internal error" not in said, (path, said)
            if response.status != 200:
                assert response.status in {400, 404, 500}, said
                assert len(said) > 20, (path, said)
    await here.is_well()


@pytest.mark.system
async def test_damaged_models_can_be_deleted(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    write_llama(tmp_path / "m.gguf", chat_template=None)
    for number, name in enumerate(CASES, 100):
        add(store, name, number, tmp_path / "w.gguf")
    async with served(tmp_path) as here:
        await here.is_well()
        kept = {name for name in CASES if not store.manifest_path(name).is_file()}
        for name in CASES:
            async with asyncio.timeout(PATIENCE_S):
                said = await here.ask("DELETE", "/api/delete", model=name)
            assert said.status == (404 if name in kept else 200), (name, said)
        assert await here.names() == ["m:latest", "other:latest"]
        await here.is_well()


# --------------------------------------------------------------------------- what was learned


STATE: Final = ("history.json", "memory.json", "vocabularies.json")
WRONG_STATES: Final = {
    damage.__name__: damage
    for damage in (
        *(truncated, empty, huge, a_folder, a_pipe, a_link("/dev/zero"), a_link("itself")),
        holding("deep", b"[" * 200_000),
        holding("no_text", b"\xff\xfe\x00" * 100),
        holding("of_another_time", b'{"version": 99}'),
    )
}


@pytest.mark.parametrize(
    "name",
    [
        name if name == "a_pipe" else pytest.param(name, marks=pytest.mark.system)
        for name in WRONG_STATES
    ],
)
async def test_the_daemon_starts_with_damaged_state_files(tmp_path: Path, name: str) -> None:
    """The daemon answers, logs which file is damaged, and stores new data."""
    damaged = [tmp_path / "state" / file for file in STATE]
    damaged.append(tmp_path / "config" / "specd" / "pairs.toml")
    damaged.append(tmp_path / "home" / ".ollama" / "id_ed25519")
    for path in damaged:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"version": 1, "pairs": [')
        WRONG_STATES[name](path)
    async with FakeRegistry(token="asked for").serve() as registry, served(tmp_path) as here:
        await here.is_well()
        registry.add("me/m/x", b"layer")
        body = {"model": registry.name("me/m/x"), "insecure": True}
        async with asyncio.timeout(PATIENCE_S):
            await here.post("/api/pull", **body)
        await here.is_well()
        here.daemon.process.terminate()
        assert await here.daemon.process.wait() == 0
        log = here.log()
    for path in damaged:
        quiet = name == "of_another_time" and path.name == "vocabularies.json"
        no_rules = name in {"empty", "a_link_to_itself"} and path.name == "pairs.toml"
        assert str(path) in log or quiet or no_rules, path
    async with served(tmp_path) as here:
        await here.is_well()
        here.daemon.process.terminate()
        await here.daemon.process.wait()
        again = here.log().removeprefix(log)
    if name != "a_link_to_itself":
        assert not [file for file in STATE if file in again], again
        assert json.loads(damaged[0].read_bytes())["pairs"]
