"""The plans of `specd install` and `uninstall`: their steps, remarks and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import (
    StepPlan,
    apply_plan,
    gather_facts,
    layout,
    plan_install,
    plan_migrate_back,
    plan_uninstall,
    read_ollama_service,
)
from specd.install.health_check import check_health
from specd.install.steps import put_file, start_unit
from specd.port_owner import PortOwner
from tests.install.fake_host_system import (
    FakeHostSystem,
    install,
    migration,
    words,
    write_small_sources,
)

pytestmark = pytest.mark.usefixtures("answering")


# --------------------------------------------------------------------------- install


def test_a_plan_changes_nothing_until_it_is_applied(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    before = with_ollama.snapshot()
    migration(with_ollama, tmp_path / "sources").lines()
    assert (with_ollama.snapshot(), with_ollama.done) == (before, [])


def test_a_plan_prints_no_control_characters(machine: FakeHostSystem) -> None:
    said: list[str] = []
    text = "a\x1b[2J"
    plan = StepPlan(text, (put_file("/etc/x", text.encode(), why=text, shows=True),), (text,))
    apply_plan(plan, machine, said.append)
    assert len(plan.lines()) == 4
    assert not any("\x1b" in line for line in (*plan.lines(), *said))


def test_an_installation_writes_the_shipped_files(machine: FakeHostSystem, tmp_path: Path) -> None:
    install(machine, tmp_path / "sources")
    facts = gather_facts(machine)
    assert all(facts.contents[path] == text for path, text in facts.shipped.files.items())
    assert machine.at(layout.ENV_FILE).stat().st_mode & 0o777 == 0o640
    assert machine.groups["specd.env"] == "specd"
    assert machine.at("/opt/specd/lib/python3.11/site-packages/specd/module.py").is_file()
    assert str(machine.at(layout.COMMAND).readlink()) == "/opt/specd/bin/specd"
    assert (machine.active, machine.enabled) == ({layout.SERVICE}, {layout.SERVICE})


def test_an_update_keeps_changes_made_by_hand(machine: FakeHostSystem, tmp_path: Path) -> None:
    install(machine, tmp_path / "sources")
    machine.put(layout.ENV_FILE, "OLLAMA_HOST=:1\n")
    machine.put(f"{layout.UNITS}/{layout.SERVICE}", "by hand")
    said = words(install(machine, tmp_path / "sources", "two"))
    assert f"{layout.ENV_FILE} exists and is not changed" in said
    assert machine.at(layout.ENV_FILE).read_text() == "OLLAMA_HOST=:1\n"
    assert machine.at(f"{layout.UNITS}/{layout.SERVICE}.kept-by-specd").read_text() == "by hand"
    module = machine.at("/opt/specd/lib/python3.11/site-packages/specd/module.py")
    assert module.read_text() == "'two'\n"
    assert [path.name for path in machine.at("/opt").iterdir()] == ["specd"]
    assert machine.done.count("systemctl restart specd.service") == 2


def test_an_unchanged_unit_is_replaced_without_a_backup(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    install(machine, tmp_path / "sources")
    facts = gather_facts(machine)
    newer = replace(
        facts, shipped=replace(facts.shipped, files=dict.fromkeys(facts.shipped.files, b"newer"))
    )
    assert "kept-by-specd" not in words(plan_install(newer, None))


def test_no_start_starts_and_enables_nothing(machine: FakeHostSystem, tmp_path: Path) -> None:
    holder = PortOwner(7, "ollama", "ollama.service")
    plan = plan_install(
        gather_facts(machine), write_small_sources(tmp_path), starts=False, holder=holder
    )
    apply_plan(plan, machine, print)
    assert (machine.active, machine.enabled) == (set(), set())


def test_an_update_without_a_restart_warns_of_failing_answers(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    install(machine, tmp_path / "sources")
    plan = plan_install(
        gather_facts(machine), write_small_sources(tmp_path / "sources"), starts=False
    )
    assert plan.outcome[-1].endswith("answers may fail.  To restart it: systemctl restart specd")
    assert "answers may fail until `systemctl restart specd`" in words(plan)
    # The program itself is not changed.
    assert "answers may fail" not in words(plan_install(gather_facts(machine), None, starts=False))
    machine.active.clear()
    plan = plan_install(
        gather_facts(machine), write_small_sources(tmp_path / "sources"), starts=False
    )
    assert plan.outcome[-1].endswith("systemctl enable --now specd")
    assert "answers may fail" not in words(plan)


def test_a_service_that_its_socket_starts_is_not_enabled(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    install(machine, tmp_path / "sources")
    machine.enabled = {layout.SOCKET}
    plan = plan_install(gather_facts(machine), write_small_sources(tmp_path / "sources"))
    assert start_unit(layout.SERVICE, enable=False) in plan.steps


def test_a_command_of_another_program_is_not_replaced(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    machine.put(layout.COMMAND, "another specd")
    said = words(install(machine, tmp_path / "sources"))
    assert "belongs to another program and is not changed" in said
    assert machine.at(layout.COMMAND).read_text() == "another specd"


def test_a_machine_without_systemd_is_an_error(machine: FakeHostSystem) -> None:
    machine.at("/run/systemd/system").rmdir()
    with pytest.raises(InstallError, match="systemd does not run here"):
        gather_facts(machine)


def test_a_dry_run_shows_the_plan_without_systemd(machine: FakeHostSystem, tmp_path: Path) -> None:
    machine.at("/run/systemd/system").rmdir()
    before = machine.snapshot()
    plan = plan_install(
        gather_facts(machine, dry_run=True), write_small_sources(tmp_path / "sources")
    )
    words = "\n".join(plan.lines())
    assert "reload systemd's units: systemctl daemon-reload" in words
    assert "the states of the units are unknown: systemd does not run" in words
    assert machine.snapshot() == before


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"free_bytes": 10}, "/opt/specd needs 0 MB, but only 0 MB are free"),
        (
            {"read_only": (layout.ENVIRONMENT,)},
            "/opt/specd is on a read-only file system",
        ),
        ({"folders": frozenset({layout.ENVIRONMENT})}, "did not create it; move it away"),
    ],
)
def test_an_installation_that_cannot_work_is_not_started(
    machine: FakeHostSystem, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    facts = replace(gather_facts(machine), **changes)  # type: ignore[arg-type]
    with pytest.raises(InstallError, match=said):
        plan_install(facts, write_small_sources(tmp_path))


def test_a_read_only_usr_leaves_out_only_the_link(machine: FakeHostSystem, tmp_path: Path) -> None:
    facts = replace(gather_facts(machine), read_only=(layout.COMMAND,))
    said = words(plan_install(facts, write_small_sources(tmp_path)))
    assert "the command is /opt/specd/bin/specd" in said
    assert f"link {layout.COMMAND}" not in said


@pytest.mark.parametrize(
    "holder,said",
    [
        (
            PortOwner(7, "ollama", "ollama.service"),
            "by ollama .pid 7, ollama.service.: use `specd migrate`",
        ),
        (
            PortOwner(7, "ollama", "ollama.service of user 1"),
            "stop it, or give specd another address",
        ),
        (PortOwner(7, "ollama", "session-1.scope"), "stop it, or give specd another address"),
        (PortOwner(7, "nginx", "nginx.service"), "taken by nginx .*OLLAMA_HOST in /etc/specd"),
        (PortOwner(), "taken by another program"),
    ],
)
def test_the_error_names_the_holder_of_the_port(
    machine: FakeHostSystem, tmp_path: Path, holder: PortOwner, said: str
) -> None:
    with pytest.raises(InstallError, match=said):
        plan_install(gather_facts(machine), write_small_sources(tmp_path), holder=holder)


def test_an_unreadable_record_is_an_error(machine: FakeHostSystem) -> None:
    machine.put(layout.RECORD, "{")
    with pytest.raises(InstallError, match=r"cannot read .*installed\.json"):
        gather_facts(machine)


def test_an_unreadable_file_of_ollama_prevents_only_a_migration(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    apply_plan(migration(with_ollama, tmp_path / "sources"), with_ollama, print)
    with_ollama.at("/etc/default/ollama").write_bytes(b"OLLAMA_HOST=\xff\n")
    facts = gather_facts(with_ollama)
    said = "the address of ollama.service is unknown: ollama.service has settings in a file"
    for plan in (plan_install(facts, None), plan_migrate_back(facts), plan_uninstall(facts)):
        assert said in words(plan)
    with pytest.raises(InstallError, match="is not UTF-8"):
        read_ollama_service(with_ollama)


@pytest.mark.parametrize("host", ["https://0.0.0.0:4242", "http://127.0.0.1:4242/ollama"])
def test_the_health_check_uses_plain_http_at_the_root(
    with_ollama: FakeHostSystem, tmp_path: Path, host: str
) -> None:
    with_ollama.put(layout.ENV_FILE, f"OLLAMA_HOST={host}\n")
    url = "http://127.0.0.1:4242"
    assert check_health(url) in plan_install(gather_facts(with_ollama), None).steps
    plan = migration(with_ollama, tmp_path)
    assert check_health(url, n_models=1) in plan.steps
    assert "specd answers on http://127.0.0.1:4242 in" in plan.outcome[0]


# --------------------------------------------------------------------------- uninstall


def test_uninstall_without_an_installation_is_an_error(machine: FakeHostSystem) -> None:
    with pytest.raises(InstallError, match="not installed"):
        plan_uninstall(gather_facts(machine))


def test_only_a_purge_removes_models_state_and_settings(
    machine: FakeHostSystem, tmp_path: Path
) -> None:
    before = machine.snapshot()
    install(machine, tmp_path / "sources")
    model = machine.put("/var/lib/specd/.ollama/models/blobs/sha256-1", "weights")
    own = machine.put(f"{layout.UNITS}/{layout.SERVICE}.d/override.conf", "[Service]\n")
    apply_plan(plan_uninstall(gather_facts(machine)), machine, print)
    assert model.exists()
    assert own.exists()
    assert machine.at(layout.ENV_FILE).exists()
    assert not machine.at(layout.ENVIRONMENT).exists()
    assert not machine.at(f"{layout.UNITS}/{layout.SERVICE}").exists()
    assert (machine.active, machine.enabled) == (set(), set())

    install(machine, tmp_path / "sources")
    apply_plan(plan_uninstall(gather_facts(machine), purges=True), machine, print)
    gone = {path for path in machine.snapshot() if "specd" in path}
    assert gone == set()
    assert {path: machine.snapshot()[path] for path in before} == before


def test_uninstall_backs_up_a_unit_changed_by_hand(machine: FakeHostSystem, tmp_path: Path) -> None:
    install(machine, tmp_path / "sources")
    machine.put(f"{layout.UNITS}/{layout.SERVICE}", "by hand")
    apply_plan(plan_uninstall(gather_facts(machine)), machine, print)
    assert machine.at(f"{layout.UNITS}/{layout.SERVICE}.kept-by-specd").read_text() == "by hand"
