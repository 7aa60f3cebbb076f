"""Implement `specd doctor`: find problems of the service and say how to fix them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.formatting import make_console
from specd.doctor import Finding, HeldSocket, Level, check_all, check_local, find_held_socket

_MARKS = {Level.OK: "✓", Level.ABSENT: "-", Level.WARNING: "!", Level.PROBLEM: "✗"}
_STYLES = {Level.OK: "green", Level.ABSENT: "dim", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def doctor(
    *,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="Check as this user in this shell, outside the service's sandbox."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    socket: Annotated[list[str] | None, typer.Option("--socket", hidden=True)] = None,
    socket_waits: Annotated[bool, typer.Option("--socket-waits", hidden=True)] = False,
) -> None:
    # The doctor outside the sandbox tells the one inside which socket specd.socket holds.
    held_socket = HeldSocket(tuple(socket), is_served=not socket_waits) if socket else None
    findings = check_local(held_socket or find_held_socket()) if here else check_all()
    if as_json:
        found = list(findings)
        typer.echo(json.dumps([asdict(finding) for finding in found], ensure_ascii=False, indent=2))
    else:
        found = _print(make_console(), findings)
    raise typer.Exit(1 if any(finding.level is Level.PROBLEM for finding in found) else 0)


def _print(console: Console, findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as soon as it is known, since drivers can be slow.  Return all."""
    found = []
    for finding in findings:
        found.append(finding)
        mark = _MARKS[finding.level]
        console.print(mark, style=_STYLES[finding.level], end=" ")
        console.print(f"{finding.topic}: {finding.words}", markup=False, soft_wrap=True)
        if finding.remedy:
            console.print(f"  → {finding.remedy}", style="bold", markup=False, soft_wrap=True)
    n_problems = sum(finding.level is Level.PROBLEM for finding in found)
    n_warnings = sum(finding.level is Level.WARNING for finding in found)
    console.print(f"\n{_plural(n_problems, 'problem')}, {_plural(n_warnings, 'warning')}")
    return found


def _plural(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"
