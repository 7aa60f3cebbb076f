"""The plan of `specd migrate --back`: which states it restores."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import (
    apply_plan,
    gather_facts,
    layout,
    plan_install,
    plan_migrate,
    plan_migrate_back,
    read_ollama_service,
)
from tests.install.fake_host_system import (
    FakeHostSystem,
    install,
    migration,
    words,
    write_small_sources,
)

pytestmark = pytest.mark.usefixtures("answering")


@pytest.mark.parametrize("is_active", [True, False])
def test_migrate_back_restores_ollama_and_keeps_specd_installed(
    with_ollama: FakeHostSystem, tmp_path: Path, is_active: bool
) -> None:
    if not is_active:
        with_ollama.active.clear()
    before = with_ollama.snapshot()
    apply_plan(migration(with_ollama, tmp_path / "sources"), with_ollama, print)
    apply_plan(plan_migrate_back(gather_facts(with_ollama)), with_ollama, print)
    after = with_ollama.snapshot()
    assert {path: after[path] for path in before} == before
    assert not with_ollama.at(layout.DROP_IN).parent.exists()
    assert with_ollama.at(layout.ENVIRONMENT).is_dir()
    with pytest.raises(InstallError, match="nothing to restore"):
        plan_migrate_back(gather_facts(with_ollama))


def test_migrate_back_starts_a_specd_that_ran_before(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    install(with_ollama, tmp_path / "sources")
    found = read_ollama_service(with_ollama)
    apply_plan(plan_migrate(gather_facts(with_ollama), found, None), with_ollama, print)
    assert with_ollama.active == {layout.SERVICE}
    apply_plan(plan_migrate_back(gather_facts(with_ollama)), with_ollama, print)
    assert with_ollama.active == {layout.SERVICE, layout.OLLAMA}


@pytest.fixture
def at_one_port(with_ollama: FakeHostSystem, tmp_path: Path) -> FakeHostSystem:
    """Return a machine where both services start at boot for one port, and Ollama runs."""
    with_ollama.properties[layout.OLLAMA]["Environment"] = "HOME=/var/lib/ollama"
    install(with_ollama, tmp_path / "sources")
    with_ollama.active.remove(layout.SERVICE)
    return with_ollama


def migrate(machine: FakeHostSystem) -> None:
    apply_plan(
        plan_migrate(gather_facts(machine), read_ollama_service(machine), None), machine, print
    )


@pytest.mark.parametrize("runs", [layout.OLLAMA, layout.SERVICE])
def test_migrate_back_gives_a_shared_port_to_ollama(at_one_port: FakeHostSystem, runs: str) -> None:
    at_one_port.active = {runs}
    migrate(at_one_port)
    assert (at_one_port.active, at_one_port.enabled) == (
        {layout.SERVICE},
        {layout.SERVICE, layout.OLLAMA},
    )
    plan = plan_migrate_back(gather_facts(at_one_port))
    assert (
        "http://127.0.0.1:11434 is Ollama's again (both started at boot before; now only"
        " ollama.service does); specd.service stays installed, is stopped, and does not start"
    ) in words(plan)
    apply_plan(plan, at_one_port, print)
    assert (at_one_port.active, at_one_port.enabled) == ({layout.OLLAMA}, {layout.OLLAMA})


def test_migrate_back_stops_a_socket_that_was_enabled_meanwhile(
    at_one_port: FakeHostSystem,
) -> None:
    migrate(at_one_port)
    at_one_port.active.add(layout.SOCKET)
    at_one_port.enabled.add(layout.SOCKET)
    plan = plan_migrate_back(gather_facts(at_one_port))
    assert "systemctl stop specd.socket specd.service" in words(plan)
    apply_plan(plan, at_one_port, print)
    assert (at_one_port.active, at_one_port.enabled) == ({layout.OLLAMA}, {layout.OLLAMA})


@pytest.mark.parametrize("is_told", ["by specd.env", "by the unit"])
def test_migrate_back_enables_a_specd_with_another_port(
    at_one_port: FakeHostSystem, is_told: str
) -> None:
    if is_told == "by the unit":
        at_one_port.properties[layout.SERVICE] = {"Environment": "OLLAMA_HOST=:4242"}
    else:
        at_one_port.put(layout.ENV_FILE, "OLLAMA_HOST=127.0.0.1:4242\n")
    migrate(at_one_port)
    at_one_port.properties.pop(layout.SERVICE, None)
    apply_plan(plan_migrate_back(gather_facts(at_one_port)), at_one_port, print)
    assert at_one_port.enabled == {layout.SERVICE, layout.OLLAMA}


def test_migrate_back_leaves_the_port_to_specd_if_ollama_never_starts(
    at_one_port: FakeHostSystem,
) -> None:
    at_one_port.active, at_one_port.enabled = {layout.SERVICE}, {layout.SERVICE}
    migrate(at_one_port)
    apply_plan(plan_migrate_back(gather_facts(at_one_port)), at_one_port, print)
    assert (at_one_port.active, at_one_port.enabled) == ({layout.SERVICE}, {layout.SERVICE})


def test_two_services_for_one_port_at_boot_give_a_remark(
    at_one_port: FakeHostSystem, tmp_path: Path
) -> None:
    what = write_small_sources(tmp_path / "sources")
    said = "ollama.service starts at boot too, on http://127.0.0.1:11434"
    assert said in words(plan_install(gather_facts(at_one_port), what))
    at_one_port.enabled.remove(layout.OLLAMA)
    assert said not in words(plan_install(gather_facts(at_one_port), what))


def test_migrate_back_works_after_ollama_was_removed(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    apply_plan(migration(with_ollama, tmp_path / "sources"), with_ollama, print)
    with_ollama.at(f"{layout.UNITS}/{layout.OLLAMA}").unlink()
    with_ollama.enabled.discard(layout.OLLAMA)
    plan = plan_migrate_back(gather_facts(with_ollama))
    assert "removed in the meantime" in plan.outcome[0]
    apply_plan(plan, with_ollama, print)
    assert with_ollama.active == set()
