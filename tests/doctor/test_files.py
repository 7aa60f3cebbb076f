"""The findings on the store, the state folder and the keys."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from specd.doctor import files
from specd.doctor.files import hidden_home, secrets, state, store
from specd.doctor.finding import Finding, Level
from specd.settings import Settings
from specd.store import Library
from tests.gguf_files import OllamaStore, write_llama


def store_findings(models: Path) -> list[Finding]:
    return list(store(models, Library(models, demo=False)))


def closed(monkeypatch: pytest.MonkeyPatch, path: Path, mode: int) -> None:
    """Make os.access deny one path, since root has all permissions."""
    real = os.access
    monkeypatch.setattr("os.access", lambda p, m: not (Path(p) == path and m & mode) and real(p, m))


def test_the_store_finding_counts_models_and_free_space(tmp_path: Path) -> None:
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


def test_a_store_that_does_not_exist_yet_is_no_problem(tmp_path: Path) -> None:
    [finding] = store_findings(tmp_path / "a/b")
    assert finding.level is Level.ABSENT


def test_an_unreadable_store_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(monkeypatch, tmp_path, 4)
    [finding] = store_findings(tmp_path)
    assert finding.level is Level.PROBLEM
    assert "cannot read" in finding.words


def test_a_store_without_write_access_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blobs").mkdir()
    closed(monkeypatch, tmp_path / "blobs", 2)
    count, room = store_findings(tmp_path)
    assert count.level is Level.OK
    assert room.level is Level.WARNING
    assert "pull, create and delete will fail" in room.words


def test_the_remedy_for_a_read_only_store_changes_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(monkeypatch, tmp_path, 2)
    seen = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = seen.f_flag | os.ST_RDONLY

    monkeypatch.setattr("os.statvfs", lambda _path: ReadOnly)
    (tmp_path / "blobs").mkdir()
    _, room = store_findings(tmp_path)
    assert room.remedy.endswith(f"ReadWritePaths={tmp_path}")
    # systemd does not follow links by itself.
    (tmp_path / "blobs").rmdir()
    (tmp_path / "blobs").symlink_to("/usr")
    _, room = store_findings(tmp_path)
    assert room.remedy.endswith(f"ReadWritePaths={tmp_path} /usr")
    [absent] = store_findings(tmp_path / "a/b")
    assert absent.level is Level.PROBLEM
    assert absent.remedy.startswith("create it, ")
    assert absent.remedy.endswith(f"ReadWritePaths={tmp_path}/a/b")


@pytest.mark.parametrize("part", ["", "manifests", "manifests/registry.ollama.ai/library"])
def test_unwritable_manifests_and_blobs_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / part).mkdir(parents=True, exist_ok=True)
    assert Level.WARNING not in [f.level for f in store_findings(tmp_path) if "free" not in f.words]
    closed(monkeypatch, tmp_path / part, 2)
    _, room = store_findings(tmp_path)
    assert room.level is Level.WARNING
    named = f" ({tmp_path / part})" if part else str(tmp_path)
    assert f"{named}: pull, create and delete will fail" in room.words
    assert room.remedy.endswith(f"write access to {tmp_path / part}")


@pytest.mark.parametrize(
    "mode,mount,is_hidden",
    [
        (0o000, "/ext4", True),
        (0o755, "HOME tmpfs", True),
        (0o755, "HOME ext4", False),
        (0o755, "/elsewhere tmpfs", False),
        (0o755, "", False),
    ],
)
def test_the_remedy_for_a_hidden_store_opens_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, mount: str, is_hidden: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=mode)
    home.chmod(mode)
    monkeypatch.setattr(files, "HOMES", (home,))
    mounts = tmp_path / "mounts"
    where, _, kind = mount.replace("HOME", str(home)).partition(" ")
    mounts.write_text(
        f"1 2 0:3 / / rw - ext4 x rw\n4 1 0:5 / {where or '/x'} rw - {kind or 'x'} x rw\n"
    )
    hidden = hidden_home(home / "me/models", mounts)
    assert hidden == (home if is_hidden else None)
    assert hidden_home(tmp_path / "srv/models", mounts) is None
    if mode == 0:
        [finding] = store_findings(home / "me/models")
        assert finding.level is Level.PROBLEM
        assert f"hides {home}" in finding.words
        assert "ProtectHome=tmpfs" in finding.remedy
        assert f"BindPaths={home}/me/models" in finding.remedy


def test_a_home_that_is_a_tmpfs_itself_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "me").mkdir(parents=True)
    monkeypatch.setattr(files, "HOMES", (home,))
    mounts = tmp_path / "mounts"
    mounts.write_text(f"4 1 0:5 / {home} rw shared:1 - tmpfs x rw\n")
    assert hidden_home(home / "me/models", mounts) is None
    closed(monkeypatch, home / "me", 2)
    assert hidden_home(home / "me/models", mounts) == home


def test_the_demo_pair_is_not_counted(tmp_path: Path) -> None:
    found = list(store(tmp_path, Library(tmp_path, demo=True)))
    assert found[0].words == f"0 models in {tmp_path}"


def test_an_unwritable_state_folder_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    assert state(settings).level is Level.OK
    closed(monkeypatch, tmp_path, 2)
    assert state(settings).level is Level.WARNING


@pytest.mark.parametrize(
    "change,words",
    [
        ({"f_bavail": 0}, "0.0 MiB are free"),
        ({"f_favail": 0, "f_files": 100}, "no file can be added"),
        ({"f_favail": 0, "f_files": 0}, ""),
    ],
)
def test_a_full_disk_of_the_state_folder_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], words: str
) -> None:
    disk = SimpleNamespace(f_bavail=10**6, f_frsize=4096, f_files=100, f_favail=10, f_flag=0)
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(**vars(disk) | change))
    finding = state(Settings(state_dir=tmp_path / "state"))
    assert finding.level is (Level.WARNING if words else Level.OK)
    assert words in finding.words
    assert ("is full" in finding.words) is bool(words)


@pytest.mark.parametrize(
    "text,mode,is_told",
    [
        ("SPECD_API_KEYS=0123456789abcdef\n", 0o644, True),
        ("SPECD_API_KEYS=0123456789abcdef\n", 0o640, False),
        ("#SPECD_API_KEYS=\n", 0o644, False),
    ],
)
def test_keys_that_all_users_can_read_are_a_warning(
    tmp_path: Path, text: str, mode: int, is_told: bool
) -> None:
    path = tmp_path / "specd.env"
    path.write_text(text)
    path.chmod(mode)
    settings = Settings(env_file=path, api_keys=(SecretStr("0123456789abcdef"),))
    found = list(secrets(settings))
    assert bool(found) is is_told
    assert all("0123456789abcdef" not in finding.words for finding in found)
