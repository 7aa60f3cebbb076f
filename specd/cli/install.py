"""`specd install`, `uninstall`, `migrate`: a service of systemd, in Ollama's place and back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specd.errors import InstallError

if TYPE_CHECKING:
    from specd.install import Choice, Facts, Plan, Sources

_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, in order, and do nothing.")
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]
_Python = Annotated[
    str, typer.Option(help="The Python that runs the service; it must see it: none in a home.")
]


def install(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Put all in place; start and enable nothing.")
    ] = False,
    python: _Python = "",
) -> None:
    from specd import install as room

    facts = room.look(room.Machine(), dry_run=dry_run)
    holder = None if no_start else room.who_has_port(facts, facts.address)
    what = _what_to_copy(facts, python)
    plan = room.plan_install(facts, what, starts=not no_start, holder=holder)
    _carry_out(plan, dry_run=dry_run, yes=yes)


def uninstall(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Models that specd pulled, settings and user too.")
    ] = False,
) -> None:
    from specd import install as room

    plan = room.plan_uninstall(room.look(room.Machine(), dry_run=dry_run), purges=purge)
    _carry_out(plan, dry_run=dry_run, yes=yes)


def migrate(
    *,
    dry_run: _DryRun = False,
    yes: _Yes = False,
    back: Annotated[bool, typer.Option("--back", help="Give its place back to Ollama.")] = False,
    store: Annotated[
        Path | None,
        typer.Option(help="A store in another place: of a user's own `ollama serve`, say."),
    ] = None,
    python: _Python = "",
) -> None:
    from specd import install as room

    machine = room.Machine()
    facts = room.look(machine, dry_run=dry_run)
    if back:
        _carry_out(room.plan_back(facts), dry_run=dry_run, yes=yes)
        return
    if store is not None:
        store = store.expanduser().absolute()
    if facts.ollama.is_there:
        # A dry run may be unable to ask systemd; what the unit's files say has to do then.
        units = room.UnitFiles(machine) if facts.unseen else None
        found = room.read_service(machine, store, units)
    elif store is not None:
        found = room.of_store(machine, store)
    else:
        raise InstallError(
            "there is no ollama.service here.  The models of a user's own `ollama serve`:"
            " specd migrate --store /home/USER/.ollama/models"
        )
    holder = room.who_has_port(facts, room.address_of(facts, found), replaced=[facts.ollama.name])
    what = None if facts.record.is_installed else _what_to_copy(facts, python)
    plan = room.plan_migrate(facts, found, what, holder=holder)
    _carry_out(plan, dry_run=dry_run, yes=yes)


def _what_to_copy(facts: Facts, python: str) -> tuple[Choice, Sources] | None:
    from specd import install as room

    if facts.runs_installed:
        return None
    now = room.running()
    choice = room.choose(now, room.candidates(now.version), python)
    return choice, room.collect()


def _carry_out(plan: Plan, *, dry_run: bool, yes: bool) -> None:
    from specd import install as room

    if not dry_run and os.geteuid() != 0:
        raise InstallError(
            f"this is root's to do: sudo {sys.argv[0]} {' '.join(sys.argv[1:])}"
            "  (--dry-run shows anybody what would be done)"
        )
    for line in plan.lines():
        typer.echo(line)
    if dry_run:
        typer.echo("This was a dry run: nothing was done.")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InstallError("nobody is there to ask; --yes does it without")
        typer.confirm("Do this?", abort=True)
    room.carry_out(plan, room.Machine(), typer.echo)
    for line in plan.outcome:
        typer.echo(line)
