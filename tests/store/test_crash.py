"""A writer killed at any step, and two at once: nothing lost, nothing half-visible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specd.store import Writer
from specd.store.name import parse
from tests.store.dying import NEW, OPERATIONS
from tests.store.manifests import CONFIG, check_whole, digest, manifest

ROOT = Path(__file__).parents[2]
M = "registry.ollama.ai/library/m/latest"
OTHER = "registry.ollama.ai/library/other/latest"
COPY = "registry.ollama.ai/a/copy/v1"
OLD = manifest(b"old layer", b"shared")
KEPT = manifest(b"shared")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.store.dying", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def store_before(root: Path) -> None:
    writer = Writer(root)
    for layer in (b"old layer", b"shared", CONFIG, b"unused"):
        writer.put(layer)
    writer.publish(parse("m"), OLD)
    writer.publish(parse("other"), KEPT)
    for path in root.rglob("*"):
        os.utime(path, (0, 0))


BEFORE = {M: OLD, OTHER: KEPT}
AFTER = {
    "put": BEFORE,
    "publish": BEFORE | {M: manifest(*NEW)},
    "delete": {OTHER: KEPT},
    "copy": BEFORE | {COPY: OLD},
    "copy_over": BEFORE | {M: KEPT},
    "prune": BEFORE,
}


@pytest.mark.contract("store.atomic")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_writer_killed_at_any_step(tmp_path: Path, operation: str) -> None:
    store_before(tmp_path / "before")
    with start("crash", operation, str(tmp_path)) as crashing:
        assert crashing.wait() == 0
    stores = [tmp_path / str(n) for n in range(1, len(list(tmp_path.iterdir())))]
    assert len(stores) > 2
    seen = [check_whole(store) for store in stores]
    assert all(manifests in (BEFORE, AFTER[operation]) for manifests in seen)
    assert seen[-1] == AFTER[operation]
    for store, manifests in zip(stores, seen, strict=True):
        for path in store.rglob("*"):
            os.utime(path, (0, 0))
        Writer(store).prune()
        layers = {b"shared", CONFIG}
        layers |= {b"old layer"} if OLD in manifests.values() else set()
        layers |= set(NEW) if manifest(*NEW) in manifests.values() else set()
        assert {path.name.replace("-", ":") for path in (store / "blobs").iterdir()} == {
            digest(layer) for layer in layers
        }
        assert {path.name for path in store.iterdir()} == {"blobs", "manifests"}


@pytest.mark.contract("store.atomic")
def test_writers_at_once(tmp_path: Path) -> None:
    racers = [start("race", str(tmp_path), str(seed)) for seed in range(3)]
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    check_whole(tmp_path)
    writer = Writer(tmp_path)
    for model in ("m0", "m1", "m2"):
        if writer.manifest_path(parse(model)).exists():
            writer.delete(parse(model))
    assert not list((tmp_path / "manifests").iterdir())
