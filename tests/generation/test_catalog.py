"""The catalog: models of the store first, then those of upstream servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd import core, errors
from specd.generation import Catalog
from specd.store import Library
from tests.gguf_files import OllamaStore, write_llama


def upstream(name: str) -> core.UpstreamModel:
    return core.UpstreamModel(
        name=name, full_name=name, digest="", engine="there", upstream_name=name.upper()
    )


@pytest.fixture
def library(tmp_path: Path) -> Library:
    OllamaStore(tmp_path / "models").add("mine", weights=write_llama(tmp_path / "m.gguf"))
    return Library(tmp_path / "models", demo=False)


def test_a_local_model_hides_an_upstream_one_of_the_same_name(library: Library) -> None:
    catalog = Catalog(library, lambda: [upstream("Mine:latest"), upstream("far:latest")])
    assert [summary.name for summary in catalog.list()] == ["mine:latest", "far:latest"]
    assert isinstance(catalog.resolve("mine"), core.LocalModel)
    assert catalog.resolve("FAR") == upstream("far:latest")
    assert catalog.show("far").summary.remote_model == "FAR:LATEST"


def test_an_upstream_model_without_a_valid_name_hides_no_other(library: Library) -> None:
    catalog = Catalog(library, lambda: [upstream("a/b/c/d/e f"), upstream("far:latest")])
    assert [summary.name for summary in catalog.list()] == ["mine:latest", "far:latest"]
    with pytest.raises(errors.ModelNotFound, match="'none' not found"):
        catalog.resolve("none")
    with pytest.raises(errors.InvalidName):
        catalog.resolve("a/b/c/d/e f")
