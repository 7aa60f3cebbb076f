"""The store, the state and the keys, as whoever runs specd may use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from specd.doctor.files import secrets, state, store
from specd.doctor.finding import Finding, Level
from specd.settings import Settings
from specd.store import Library
from tests.gguf_files import OllamaStore, write_llama


def store_findings(models: Path) -> list[Finding]:
    return list(store(models, Library(models, demo=False)))


def closed(monkeypatch: pytest.MonkeyPatch, path: Path, mode: int) -> None:
    """Root may do everything: the test stands in for the kernel's word on one path."""
    real = os.access
    monkeypatch.setattr("os.access", lambda p, m: not (Path(p) == path and m & mode) and real(p, m))


def test_a_store_is_counted_and_its_disk_measured(tmp_path: Path) -> None:
    OllamaStore(tmp_path).add("m", weights=write_llama(tmp_path / "m.gguf"))
    count, room = store_findings(tmp_path)
    assert count.level is Level.OK
    assert count.words == f"1 model in {tmp_path}"
    assert "GiB are free" in room.words


def test_a_model_that_cannot_be_served_is_named(tmp_path: Path) -> None:
    shelf = OllamaStore(tmp_path)
    shelf.add("good", weights=write_llama(tmp_path / "m.gguf"))
    shelf.add("torn", weights=write_llama(tmp_path / "n.gguf", seed=1))
    Library(tmp_path, demo=False).resolve("torn").weights.unlink()
    [broken] = [f for f in store_findings(tmp_path) if f.level is Level.PROBLEM]
    assert broken.words.startswith("1 cannot be served: torn:latest: ")
    assert "pull" in broken.remedy


def test_a_store_that_is_not_there_yet_is_made_by_the_first_pull(tmp_path: Path) -> None:
    [finding] = store_findings(tmp_path / "a/b")
    assert finding.level is Level.OK


def test_a_store_that_may_not_be_read_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(monkeypatch, tmp_path, 4)
    [finding] = store_findings(tmp_path)
    assert finding.level is Level.PROBLEM
    assert "may not be read" in finding.words


def test_a_store_that_may_not_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blobs").mkdir()
    closed(monkeypatch, tmp_path / "blobs", 2)
    count, room = store_findings(tmp_path)
    assert count.level is Level.OK
    assert room.level is Level.WARNING
    assert "nothing can be pulled" in room.words


def test_a_store_on_what_is_read_only_is_opened_in_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(monkeypatch, tmp_path, 2)
    seen = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = seen.f_flag | os.ST_RDONLY

    monkeypatch.setattr("os.statvfs", lambda _path: ReadOnly)
    _, room = store_findings(tmp_path)
    assert f"ReadWritePaths={tmp_path}" in room.remedy


def test_the_demo_is_no_model_of_the_store(tmp_path: Path) -> None:
    found = list(store(tmp_path, Library(tmp_path, demo=True)))
    assert found[0].words == f"0 models in {tmp_path}"


def test_a_state_folder_that_may_not_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    assert state(settings).level is Level.OK
    closed(monkeypatch, tmp_path, 2)
    assert state(settings).level is Level.WARNING


@pytest.mark.parametrize(
    "text,mode,is_told",
    [
        ("SPECD_API_KEYS=0123456789abcdef\n", 0o644, True),
        ("SPECD_API_KEYS=0123456789abcdef\n", 0o640, False),
        ("#SPECD_API_KEYS=\n", 0o644, False),
    ],
)
def test_keys_that_everybody_may_read_are_a_warning(
    tmp_path: Path, text: str, mode: int, is_told: bool
) -> None:
    path = tmp_path / "specd.env"
    path.write_text(text)
    path.chmod(mode)
    settings = Settings(env_file=path, api_keys=(SecretStr("0123456789abcdef"),))
    found = list(secrets(settings))
    assert bool(found) is is_told
    assert all("0123456789abcdef" not in finding.words for finding in found)
