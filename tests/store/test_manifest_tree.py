"""The listing of manifests, and the detection of changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.store.manifest_tree import RESCAN_INTERVAL_S, ManifestTree
from tests.fakes.clock import Clock

NAMES = ("a/b/c/d", "a/b/c/e", "a/b/f/d", "g/b/c/d", "a/b/c", "a/b/c/d/e", "a/b/c/no name", "h")


def write(root: Path, name: str, text: str = "x") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def age(root: Path) -> None:
    """Set old modification times."""
    for path in (root, *root.rglob("*")):
        os.utime(path, (1000, 1000))


def found(tree: ManifestTree, root: Path) -> list[str]:
    return [str(path.relative_to(root)) for _, path in tree.files()]


def test_manifests_are_four_folders_down(tmp_path: Path) -> None:
    for name in ("b/library/m/t", "a/library/m/t", "a/library/m/s", "a/library/stray", "a/x/y/z/u"):
        write(tmp_path, name)
    write(tmp_path, "a/library/m/-")
    tree = ManifestTree(tmp_path)
    assert found(tree, tmp_path) == ["a/library/m/s", "a/library/m/t", "b/library/m/t"]
    assert tree.files()[0][0].short == "a/library/m:s"


def test_a_missing_folder_has_no_manifests(tmp_path: Path) -> None:
    tree = ManifestTree(tmp_path / "none")
    assert tree.files() == ()
    before = tree.stamp()
    write(tmp_path, "none/a/b/c/d")
    assert len(tree.files()) == 1
    assert tree.stamp() != before


def test_an_unchanged_tree_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/b/c/d")
    age(tmp_path)
    tree = ManifestTree(tmp_path)
    files, stamp = tree.files(), tree.stamp()
    monkeypatch.setattr(os, "scandir", None)
    assert tree.files() is files
    assert tree.stamp() == stamp


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_manifest_written_in_place_changes_the_stamp_within_a_second(
    tmp_path: Path, clock: Clock
) -> None:
    path = write(tmp_path, "a/b/c/d")
    age(tmp_path)
    tree = ManifestTree(tmp_path, clock=clock)
    before = tree.stamp()
    path.write_text("y")
    assert tree.stamp() == before
    clock.now += RESCAN_INTERVAL_S
    assert tree.stamp() != before


def test_added_and_removed_models_show_at_once(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "a/b/c/d")
    age(tmp_path)
    tree = ManifestTree(tmp_path, clock=clock)
    stamps = [tree.stamp()]
    new = write(tmp_path, "a/b/e/d")
    stamps.append(tree.stamp())
    new.unlink()
    new.parent.rmdir()
    stamps.append(tree.stamp())
    assert stamps[0] == stamps[2] != stamps[1]


def test_a_new_tag_shows_at_once_after_a_recent_change(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, "a/b/c/d")
    tree = ManifestTree(tmp_path, clock=clock)
    before = tree.stamp()
    write(tmp_path, "a/b/c/e")
    assert tree.stamp() != before


def test_a_folder_that_has_just_changed_is_listed_again(tmp_path: Path) -> None:
    """The next change may fall into the same tick of the file system's clock."""
    write(tmp_path, "a/b/c/d")
    folder = tmp_path / "a/b/c"
    now = time.time_ns()
    tree = ManifestTree(tmp_path, unix_ns=lambda: now)
    age(tmp_path)
    os.utime(folder, ns=(now, now))
    assert len(tree.files()) == 1
    write(tmp_path, "a/b/c/e")
    os.utime(folder, ns=(now, now))
    assert len(tree.files()) == 2


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.booleans()), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_the_tree_lists_the_manifests_after_any_changes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool, bool]]
) -> None:
    root = tmp_path_factory.mktemp("manifests")
    tree = ManifestTree(root)
    for name, removes, waits in steps:
        try:
            (root / name).unlink() if removes else write(root, name)
        except OSError:
            continue
        if waits:
            age(root)
            tree._listing = None  # aging changes times unlike in real folders  # noqa: SLF001 - ages the folder's listing
        expected = sorted(
            path.relative_to(root).parts for path in root.glob("*/*/*/*") if path.is_file()
        )
        listed = [tuple(name.split("/")) for name in found(tree, root)]
        assert listed == [parts for parts in expected if parts[3] != "no name"]


def test_an_unreadable_folder_has_no_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/b/c/d")
    write(tmp_path, "e/b/c/d")
    scandir = os.scandir

    def closed(path: str) -> object:
        if path.endswith("/e"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert found(ManifestTree(tmp_path), tmp_path) == ["a/b/c/d"]
