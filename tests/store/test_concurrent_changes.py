"""Concurrent writers lose nothing and show no incomplete model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specd.store import StoreWriter
from specd.store.name import parse
from tests.store.manifests import check_whole

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.store.concurrent_changes", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def check_and_clear(root: Path) -> None:
    """Assert that every model is complete, and that deleting all leaves nothing."""
    check_whole(root)
    writer = StoreWriter(root)
    for model in ("m0", "m1", "m2"):
        if writer.manifest_path(parse(model)).exists():
            writer.delete(parse(model))
    assert not list((root / "manifests").iterdir())


@pytest.mark.contract("store.atomic")
def test_concurrent_writers_keep_the_store_whole(tmp_path: Path) -> None:
    racers = [start(tmp_path, seed) for seed in range(3)]
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    check_and_clear(tmp_path)
