"""Plan `specd uninstall`."""

from __future__ import annotations

from collections.abc import Iterator

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import HostFacts
from specd.install.install_plan import RELOAD, backup_name, unseen
from specd.install.migrate_back_plan import former_ollama_state, migrate_back_files
from specd.install.record import Record, fingerprint
from specd.install.step_runner import StepPlan
from specd.install.steps import (
    BackUpFile,
    PutFile,
    RemoveFile,
    RemoveTree,
    RemoveUser,
    RunProgram,
    SaveUnitStates,
    SetUnitStates,
    Step,
)


def plan_uninstall(facts: HostFacts, *, purges: bool = False) -> StepPlan:
    """Return the plan.

    purges: also remove models, histories, settings and the user.  Raises InstallError.
    """
    ours = facts.record.made_user and facts.has_user
    if not facts.record.files and not facts.record.is_installed and not (purges and ours):
        raise InstallError("specd is not installed here: nothing was recorded by `specd install`")
    before = facts.record.taken_over
    steps: list[Step] = [SaveUnitStates((facts.ollama, facts.service, facts.socket))]
    steps += _stop(facts)
    if before is not None:
        steps += migrate_back_files(facts, before)
    steps += _remove(facts)
    if purges:
        steps += _purge(facts)
    steps.append(RELOAD)
    if before is not None and facts.ollama.is_there:
        steps.append(SetUnitStates((former_ollama_state(facts, before),)))
    # The last file: until then the next run knows about an interrupted one.
    if ours and not purges:
        why = "the user was created by specd; --purge removes it"
        steps.append(PutFile(layout.RECORD, Record(made_user=True).bytes(), why=why))
    else:
        steps.append(RemoveFile(layout.RECORD))
    if purges and ours:
        # After all steps that may fail, because removing a user cannot be undone.
        steps.append(RemoveUser(layout.USER))
    return StepPlan(
        "Uninstalling specd",
        tuple(steps),
        (*unseen(facts), *_remarks(facts, purges=purges)),
        _OUTCOME,
    )


_OUTCOME = ("specd is uninstalled",)


def _stop(facts: HostFacts) -> Iterator[Step]:
    units = [unit.name for unit in (facts.socket, facts.service) if unit.is_there]
    if units:
        yield RunProgram("stop specd, now and at boot", ("systemctl", "disable", "--now", *units))


def _remove(facts: HostFacts) -> Iterator[Step]:
    for path, written in facts.record.files.items():
        content = facts.contents.get(path)
        if content is None:
            continue
        if fingerprint(content) != written:
            yield BackUpFile(path, backup_name(path))
        yield RemoveFile(path)
    if facts.record.has_command and facts.command == f"{layout.ENVIRONMENT}/bin/specd":
        yield RemoveFile(layout.COMMAND)
    for folder in (layout.ENVIRONMENT, layout.STAGED, layout.FORMER):
        if folder in facts.folders and facts.record.has_environment:
            yield RemoveTree(folder)


def _purge(facts: HostFacts) -> Iterator[Step]:
    reasons = {
        layout.STATE: "specd's own models and its history",
        layout.CONFIG: "settings and pairs",
        f"{layout.UNITS}/{layout.SERVICE}.d": "settings of `systemctl edit specd`",
        f"{layout.UNITS}/{layout.SOCKET}.d": "settings of `systemctl edit specd.socket`",
    }
    for folder, why in reasons.items():
        if folder in facts.folders:
            yield RemoveTree(folder, why)


def _remarks(facts: HostFacts, *, purges: bool) -> Iterator[str]:
    if facts.record.taken_over:
        yield "Ollama's store stays, including models pulled by specd"
    if not purges:
        kept = [place for place in (layout.STATE, layout.CONFIG) if place in facts.folders]
        if kept:
            yield f"{' and '.join(kept)} and the user {layout.USER} are kept (--purge deletes them)"
