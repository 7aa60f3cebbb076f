"""`specd uninstall --purge` removes the user only if specd created it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import apply_plan, facts, gather_facts, layout, plan_uninstall
from specd.install.host_system import CommandFailed
from tests.install.fake_host_system import FakeHostSystem, install, words

pytestmark = pytest.mark.usefixtures("answering")


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch, machine: FakeHostSystem) -> set[str]:
    """Return the users; systemd-sysusers adds specd, userdel removes it but not its group."""
    there: set[str] = set()
    groups: set[str] = set()

    def on_command(line: str) -> None:
        if line.startswith("systemd-sysusers"):
            there.add(layout.USER)
            groups.add(layout.USER)
        if line.startswith("userdel"):
            there.remove(layout.USER)
        if line.startswith("groupdel"):
            groups.remove(layout.USER)

    machine.on_command = on_command
    monkeypatch.setattr(facts, "_has_user", lambda name: name in there)
    monkeypatch.setattr(machine, "has_group", lambda name: name in groups)
    return there


def uninstall(machine: FakeHostSystem, *, purges: bool = False) -> None:
    apply_plan(plan_uninstall(gather_facts(machine), purges=purges), machine, print)


def test_a_purge_after_an_uninstall_and_another_install_removes_the_user(
    machine: FakeHostSystem, people: set[str], tmp_path: Path
) -> None:
    for _ in range(2):
        install(machine, tmp_path / "sources")
        uninstall(machine)
        assert people == {"specd"}
    install(machine, tmp_path / "sources")
    uninstall(machine, purges=True)
    assert people == set()
    assert machine.done[-2:] == ["userdel specd", "groupdel specd"]
    assert not machine.at(layout.RECORD).parent.exists()


def test_a_purge_works_after_an_uninstall_without_one(
    machine: FakeHostSystem, people: set[str], tmp_path: Path
) -> None:
    install(machine, tmp_path / "sources")
    model = machine.put("/var/lib/specd/.ollama/models/blobs/sha256-1", "weights")
    uninstall(machine)
    with pytest.raises(InstallError, match="not installed here"):
        uninstall(machine)
    uninstall(machine, purges=True)
    assert not model.exists()
    assert people == set()
    with pytest.raises(InstallError, match="not installed here"):
        uninstall(machine, purges=True)


def test_a_purge_keeps_a_user_that_existed_before_specd(
    machine: FakeHostSystem, people: set[str], tmp_path: Path
) -> None:
    people.add("specd")
    install(machine, tmp_path / "sources")
    uninstall(machine)
    assert not machine.at(layout.RECORD).parent.exists()
    install(machine, tmp_path / "sources")
    uninstall(machine, purges=True)
    assert people == {"specd"}


def test_a_purge_succeeds_if_the_group_has_other_members(
    machine: FakeHostSystem, people: set[str], tmp_path: Path
) -> None:
    install(machine, tmp_path / "sources")
    before = machine.on_command

    def refuse(line: str) -> None:
        if line.startswith("groupdel"):
            raise CommandFailed("cannot remove the primary group of a user")
        before(line)

    machine.on_command = refuse
    assert "remove the user specd and its group" in words(
        plan_uninstall(gather_facts(machine), purges=True)
    )
    uninstall(machine, purges=True)
    assert people == set()
