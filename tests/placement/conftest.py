"""A fake NVIDIA driver for the placement tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(nvml_library: Path, tmp_path: Path) -> nvml.Driver:
    return nvml.Driver(nvml_library, tmp_path / "machine")
