"""Plan `specd migrate --back`, which restores Ollama, and `specd uninstall`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specd.errors import InstallError
from specd.install import layout
from specd.install.facts import HostFacts, address_in
from specd.install.host_system import UnitState
from specd.install.install_plan import RELOAD, remarks_on_unknowns, write_record
from specd.install.plan import StepPlan
from specd.install.record import MigrationState, Record, fingerprint
from specd.install.steps import (
    Step,
    back_up_file,
    put_file,
    remove_file,
    remove_tree,
    remove_user,
    run_program,
    save_unit_states,
    set_unit_states,
)
from specd.port_owner import addresses_overlap

# --------------------------------------------------------------------------- migrate --back


def plan_migrate_back(facts: HostFacts) -> StepPlan:
    """Return the plan.  Raises InstallError if specd has not replaced Ollama.

    If both services started at boot for the same port before, Ollama gets it and specd stays
    stopped.
    """
    before = facts.record.taken_over
    if before is None:
        raise InstallError("specd has not replaced Ollama: there is nothing to restore")
    steps = [save_unit_states(facts.ollama, facts.socket, facts.service)]
    if running := [unit.name for unit in (facts.socket, facts.service) if unit.may_run]:
        steps.append(run_program("stop specd", "systemctl", "stop", *running))
    comes_back = facts.ollama.exists and (before.ollama_active or facts.ollama.is_enabled)
    own_address = address_in({"OLLAMA_HOST": before.specd_host, **facts.own_settings})
    gets_port = bool(comes_back) and addresses_overlap(
        own_address, address_in(facts.ollama_environment)
    )
    steps += [
        *_restore_files(facts, before),
        set_unit_states(*_former_units(facts, before, gets_port=gets_port)),
        write_record(facts.record.replace(taken_over=None)),
    ]
    outcome = "Ollama is restored"
    if before.ollama_active is None:
        outcome = "specd has its own user and store again"
    elif not facts.ollama.exists:
        outcome = f"{layout.OLLAMA} was removed in the meantime; its store is unchanged"
    remarks = [*remarks_on_unknowns(facts)]
    if gets_port and (before.specd_active or before.specd_enabled):
        both = before.specd_enabled and facts.ollama.is_enabled
        at_boot = f" (both started at boot before; now only {layout.OLLAMA} does)"
        remarks.append(
            f"{own_address.url} is Ollama's again{at_boot if both else ''}; {layout.SERVICE} stays"
            " installed, is stopped, and does not start at boot"
        )
    return StepPlan("Restoring Ollama", tuple(steps), tuple(remarks), (outcome,))


def _restore_files(facts: HostFacts, before: MigrationState) -> Iterator[Step]:
    for path in (layout.DROP_IN, layout.OLLAMA_ENV_FILE):
        if path in facts.contents:
            yield remove_file(path, with_folder=path == layout.DROP_IN)
    if layout.PAUSE in facts.contents:
        yield remove_file(layout.PAUSE, with_folder=before.ollama_folder_made)


def _former_units(
    facts: HostFacts, before: MigrationState, *, gets_port: bool
) -> tuple[UnitState, ...]:
    """Return the states of all units; specd.socket was inactive, a condition of the migration.

    gets_port: Ollama gets the port that specd's own settings name too.
    """
    socket = replace(facts.socket, is_active=False, is_enabled=False)
    specd = replace(facts.service, is_active=before.specd_active, is_enabled=before.specd_enabled)
    ollama = _former_ollama(facts, before)
    if gets_port:
        # One of the two served the port before, so one must afterwards.
        ollama = replace(ollama, is_active=ollama.is_active or specd.is_active)
        specd = replace(specd, is_active=False, is_enabled=False)
    return (socket, specd, ollama)


def _former_ollama(facts: HostFacts, before: MigrationState) -> UnitState:
    """Return Ollama's former state; it keeps its current enablement."""
    return replace(facts.ollama, is_active=bool(before.ollama_active))


# --------------------------------------------------------------------------- uninstall


def plan_uninstall(facts: HostFacts, *, purges: bool = False) -> StepPlan:
    """Return the plan.

    purges: also remove models, histories, settings and the user.  Raises InstallError.
    """
    is_our_user = facts.record.made_user and facts.has_user
    if not facts.record.files and not facts.record.is_installed and not (purges and is_our_user):
        raise InstallError("specd is not installed here: nothing was recorded by `specd install`")
    before = facts.record.taken_over
    steps = [save_unit_states(facts.ollama, facts.service, facts.socket)]
    if units := [unit.name for unit in (facts.socket, facts.service) if unit.exists]:
        steps.append(
            run_program("stop specd, now and at boot", "systemctl", "disable", "--now", *units)
        )
    if before is not None:
        steps += _restore_files(facts, before)
    steps += _remove(facts)
    if purges:
        steps += _purge(facts)
    steps.append(RELOAD)
    if before is not None and facts.ollama.exists:
        steps.append(set_unit_states(_former_ollama(facts, before)))
    # The last file: until then the next run knows about an interrupted one.
    if is_our_user and not purges:
        why = "the user was created by specd; --purge removes it"
        steps.append(put_file(layout.RECORD, Record(made_user=True).bytes(), why=why))
    else:
        steps.append(remove_file(layout.RECORD))
    if purges and is_our_user:
        # After all steps that may fail, because removing a user cannot be undone.
        steps.append(remove_user(layout.USER))
    remarks = (*remarks_on_unknowns(facts), *_remarks(facts, purges=purges))
    return StepPlan("Uninstalling specd", tuple(steps), remarks, ("specd is uninstalled",))


def _remove(facts: HostFacts) -> Iterator[Step]:
    for path, written in facts.record.files.items():
        content = facts.contents.get(path)
        if content is None:
            continue
        if fingerprint(content) != written:
            yield back_up_file(path)
        yield remove_file(path)
    if facts.record.has_command and facts.command == f"{layout.ENVIRONMENT}/bin/specd":
        yield remove_file(layout.COMMAND)
    for folder in (layout.ENVIRONMENT, layout.STAGED, layout.FORMER):
        if folder in facts.folders and facts.record.has_environment:
            yield remove_tree(folder)


def _purge(facts: HostFacts) -> Iterator[Step]:
    reasons = {
        layout.STATE: "specd's own models and its history",
        layout.CONFIG: "settings and pairs",
        f"{layout.UNITS}/{layout.SERVICE}.d": "settings of `systemctl edit specd`",
        f"{layout.UNITS}/{layout.SOCKET}.d": "settings of `systemctl edit specd.socket`",
    }
    return (remove_tree(folder, why) for folder, why in reasons.items() if folder in facts.folders)


def _remarks(facts: HostFacts, *, purges: bool) -> Iterator[str]:
    if facts.record.taken_over:
        yield "Ollama's store stays, including models pulled by specd"
    kept = [place for place in (layout.STATE, layout.CONFIG) if place in facts.folders]
    if kept and not purges:
        yield f"{' and '.join(kept)} and the user {layout.USER} are kept (--purge deletes them)"
