"""`specd install`, `uninstall` and `migrate` as commands, on a machine below a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specd import install as installer
from specd.cli.app import app
from specd.errors import InstallError
from specd.install import layout
from tests.install.fake_host_system import FakeHostSystem, write_small_sources

pytestmark = pytest.mark.usefixtures("answering")


@pytest.fixture
def here(
    with_ollama: FakeHostSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeHostSystem:
    """Return the machine that the commands use, with a Python and small sources."""
    interpreter, sources = write_small_sources(tmp_path / "sources")
    monkeypatch.setattr(installer, "HostSystem", lambda: with_ollama)
    monkeypatch.setattr(installer, "current_interpreter", lambda: interpreter)
    monkeypatch.setattr(installer, "collect_packages", lambda: sources)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return with_ollama


def output_of(*arguments: str, answers: str | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments), input=answers, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", [["install", "--no-start"], ["migrate"]])
def test_a_dry_run_does_nothing_and_needs_no_root(
    here: FakeHostSystem, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = here.snapshot()
    assert "nothing was done" in output_of(*command, "--dry-run")
    assert (here.snapshot(), here.done) == (before, [])
    with pytest.raises(InstallError, match="needs root: sudo"):
        output_of(*command, "--yes")


def test_a_dry_run_reports_a_systemd_that_answers_only_root(
    here: FakeHostSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    here.answers = False
    not_known = "states of the units are unknown: Failed to connect to bus"
    assert not_known in output_of("install", "--no-start", "--dry-run")
    with pytest.raises(InstallError, match="Failed to connect to bus"):
        output_of("install", "--no-start", "--yes")
    assert not_known in output_of("migrate", "--dry-run")
    here.answers = True
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    output_of("migrate", "--yes")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    here.answers = False
    back = output_of("migrate", "--back", "--dry-run")
    assert not_known in back
    assert "specd.service installed, state unknown" in back
    assert "stop specd.socket specd.service" in back
    assert not_known in output_of("uninstall", "--dry-run")


def test_a_dry_run_lists_the_steps_that_a_real_run_takes(here: FakeHostSystem) -> None:
    planned = output_of("migrate", "--dry-run").splitlines()
    done = output_of("migrate", "--yes").splitlines()
    steps = [line.split(". ", 1)[1] for line in planned if line[:3].strip().isdecimal()]
    assert steps
    assert [line.split(" ", 1)[1] for line in done if line.split("/")[0].isdecimal()] == steps


def test_without_a_terminal_the_confirmation_is_an_error(here: FakeHostSystem) -> None:
    with pytest.raises(InstallError, match="--yes"):
        output_of("migrate")
    assert here.active == {layout.OLLAMA}


def test_migrate_back_and_uninstall_restore_the_machine(here: FakeHostSystem) -> None:
    before = here.snapshot()
    assert "specd migrate --back" in output_of("migrate", "--yes")
    assert here.active == {layout.SERVICE}
    assert "has replaced Ollama already; this updates it" in output_of("migrate", "--dry-run")
    assert "Ollama is restored" in output_of("migrate", "--back", "--yes")
    assert here.active == {layout.OLLAMA}
    output_of("uninstall", "--purge", "--yes")
    after = here.snapshot()
    assert {path: after[path] for path in before} == before


def test_without_an_ollama_service_a_store_is_required(
    here: FakeHostSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.at(f"{layout.UNITS}/{layout.OLLAMA}").unlink()
    here.active.clear()
    here.enabled.clear()
    with pytest.raises(InstallError, match=r"no ollama\.service here.*--store"):
        output_of("migrate", "--dry-run")
    with pytest.raises(InstallError, match="no store at /none"):
        output_of("migrate", "--dry-run", "--store", "/none")
    store = here.at("/var/lib/ollama/.ollama/models")
    if store.stat().st_uid == 0:
        with pytest.raises(InstallError, match=r"store .* is root's"):
            output_of("migrate", "--dry-run", "--store", "/var/lib/ollama/.ollama/models")
        os.chown(store, 65534, -1)
    plan = output_of("migrate", "--dry-run", "--store", "/var/lib/ollama/.ollama/models")
    assert "OLLAMA_MODELS=/var/lib/ollama/.ollama/models" in plan
    assert "ollama.service.d" not in plan
