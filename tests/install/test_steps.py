"""Steps write files atomically, and their undo restores content, owner and mode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.install.steps import Step, Undo, back_up_file, put_file, remove_file
from tests.install.fake_host_system import FakeHostSystem

PATH, COPY = "/etc/a.service", "/etc/a.service.kept-by-specd"


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
def test_only_root_can_read_a_file_until_it_is_complete(
    machine: FakeHostSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may contain keys, and the power may fail at any time."""
    seen: list[tuple[str, int, bytes]] = []

    def look(number: int) -> None:
        path = Path(f"/proc/self/fd/{number}").readlink()
        whole = path.read_bytes() if path.is_file() else b""
        seen.append((path.name, os.fstat(number).st_mode & 0o777, whole))

    folder = machine.at("/etc")
    folder.chmod(0o755)
    monkeypatch.setattr(os, "fsync", look)
    put_file("/etc/a.env", b"KEY=secret\n", 0o640, "specd").do(machine, Undo())
    assert seen == [(".a.env.new", 0o600, b"KEY=secret\n"), ("etc", 0o755, b"")]
    assert [path.name for path in folder.iterdir() if "a.env" in path.name] == ["a.env"]
    assert machine.at("/etc/a.env").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", [put_file("/etc/a.env", b"new"), remove_file("/etc/a.env")])
def test_undo_restores_owner_and_mode_of_a_file(
    machine: FakeHostSystem, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    path = machine.put("/etc/a.env", "old")
    path.chmod(0o640)
    owned: list[tuple[bytes, int, int]] = []
    real = os.chown
    monkeypatch.setattr(
        os, "chown", lambda new, uid, gid: owned.append((Path(new).read_bytes(), uid, gid))
    )
    if os.geteuid() == 0:
        real(path, 4242, 4343)
    before = path.stat()
    undo = Undo()
    step.do(machine, undo)
    assert undo.revert() == []
    assert owned == [(b"old", before.st_uid, before.st_gid)]
    assert (path.read_text(), path.stat().st_mode) == ("old", before.st_mode)


def test_a_backup_never_replaces_an_earlier_one(machine: FakeHostSystem) -> None:
    for text in ("one", "two", "two", "three"):
        machine.put(PATH, text)
        back_up_file(PATH).do(machine, Undo())
    kept = {path.name: path.read_text() for path in machine.at("/etc").glob("*kept*")}
    name = Path(COPY).name
    assert kept == {name: "three", f"{name}.1": "one", f"{name}.2": "two"}


@pytest.mark.parametrize("earlier", [None, "another", "by hand"])
def test_a_backup_is_undone(machine: FakeHostSystem, earlier: str | None) -> None:
    machine.put(PATH, "by hand")
    if earlier is not None:
        machine.put(COPY, earlier)
    before = machine.snapshot()
    undo = Undo()
    back_up_file(PATH).do(machine, undo)
    assert machine.at(COPY).read_text() == "by hand"
    assert undo.revert() == []
    assert machine.snapshot() == before
