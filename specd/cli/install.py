"""Implement `specd install`, `uninstall` and `migrate`: the systemd service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from specd import install as installer
from specd.errors import InstallError

_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the steps in order, and do nothing.")
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_Python = Annotated[
    str, typer.Option(help="The Python that runs the service; it cannot be in a home folder.")
]


def install(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Install everything; start and enable nothing.")
    ] = False,
    python: _Python = "",
) -> None:
    facts = installer.gather_facts(installer.HostSystem(), dry_run=dry_run)
    holder = None if no_start else installer.find_port_holder(facts, facts.address)
    venv_contents = _venv_contents(facts, python)
    plan = installer.plan_install(facts, venv_contents, starts=not no_start, holder=holder)
    _show_and_apply(plan, dry_run=dry_run, yes=yes)


def uninstall(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove specd's models, settings and user.")
    ] = False,
) -> None:
    facts = installer.gather_facts(installer.HostSystem(), dry_run=dry_run)
    _show_and_apply(installer.plan_uninstall(facts, purges=purge), dry_run=dry_run, yes=yes)


def migrate(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    back: Annotated[bool, typer.Option("--back", help="Restore Ollama.")] = False,
    store: Annotated[
        Path | None,
        typer.Option(help="Another model store, e.g. that of a user's own `ollama serve`."),
    ] = None,
    python: _Python = "",
) -> None:
    machine = installer.HostSystem()
    facts = installer.gather_facts(machine, dry_run=dry_run)
    if back:
        _show_and_apply(installer.plan_migrate_back(facts), dry_run=dry_run, yes=yes)
        return
    if store is not None:
        store = store.expanduser().absolute()
    if facts.ollama.exists:
        # A dry run may be unable to ask systemd; then the unit files are the source.
        settings = installer.read_unit_files(machine) if facts.systemd_error else None
        found = installer.read_ollama_service(machine, store, settings)
    elif store is not None:
        found = installer.service_of_store(machine, store)
    else:
        raise InstallError(
            "there is no ollama.service here.  To use the models of a user's own `ollama serve`:"
            " specd migrate --store /home/USER/.ollama/models"
        )
    holder = installer.find_port_holder(
        facts, installer.ollama_address(facts, found), replaced=[facts.ollama.name]
    )
    venv_contents = None if facts.record.is_installed else _venv_contents(facts, python)
    plan = installer.plan_migrate(facts, found, venv_contents, holder=holder)
    _show_and_apply(plan, dry_run=dry_run, yes=yes)


def _venv_contents(facts: installer.HostFacts, python: str) -> installer.VenvContents | None:
    if facts.runs_installed:
        return None
    now = installer.current_interpreter()
    choice = installer.choose_interpreter(now, installer.find_interpreters(now.version), python)
    return choice, installer.collect_packages()


def _show_and_apply(plan: installer.StepPlan, *, dry_run: bool, yes: bool) -> None:
    if not dry_run and os.geteuid() != 0:
        raise InstallError(
            f"this needs root: sudo {sys.argv[0]} {' '.join(sys.argv[1:])}"
            "  (--dry-run needs no root)"
        )
    typer.echo("\n".join(plan.lines()))
    if dry_run:
        typer.echo("This was a dry run: nothing was done.")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InstallError("cannot ask without a terminal; use --yes")
        typer.confirm("Continue?", abort=True)
    installer.apply_plan(plan, installer.HostSystem(), typer.echo)
    typer.echo("\n".join(plan.outcome))
