"""Change a pairs file of the user or the machine and keep everything else in it.

A target is in one `[[pair]]` of the file: a change replaces its earlier rule.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Array, InlineTable, Table

from specd.errors import BadSetting
from specd.pairs.rule_files import RuleFilePaths, parse_rules, read_text
from specd.pairs.rules import USER, key_of
from specd.store.safe_files import atomic_write, exclusive_lock, to_store_errors

_HEADER: Final = (
    "Which drafter serves which model here, before specd's own registry (docs/pairs.md)."
)
#: The fields of a rule that are replaced when its drafters change.
_OF_DRAFTERS: Final = ("drafters", "reason", "pull", "expected", "draft_length", "measured")


def file_to_write(places: RuleFilePaths, *, of_machine: bool) -> Path:
    """Return the file that SPECD_PAIRS names, else the user's own.

    of_machine: return the machine's file instead.  Raises BadSetting if there is none.
    """
    if of_machine:
        if places.machine is None:
            raise BadSetting("there is no pairs file of this machine")
        return places.machine
    path = places.user
    if path is None:
        raise BadSetting(
            "there is no home directory to keep a pairs file in: name one in SPECD_PAIRS,"
            " or write the machine's with --machine"
        )
    return path


def add(
    path: Path, target: str, drafters: Sequence[str], *, draft_length: tuple[int, int] | None = None
) -> None:
    """Set the drafters of a target; raise StoreError, and BadSetting if the file is wrong."""
    fields: dict[str, Any] = {"drafters": list(drafters)}
    if draft_length is not None:
        fields["draft_length"] = list(draft_length)
    _change(path, lambda document: _put(document, target, fields))


def refuse(path: Path, target: str, reason: str = "") -> None:
    """Forbid drafting for a target; raises like `add`."""
    fields: dict[str, Any] = {"drafters": []}
    if reason:
        fields["reason"] = reason
    _change(path, lambda document: _put(document, target, fields))


def remove(path: Path, target: str) -> bool:
    """Remove a target's rule; return whether there was one.  Raises like `add`."""
    if not path.exists():
        return False
    found = False

    def change(document: TOMLDocument) -> None:
        nonlocal found
        found = _take_out(document, target)

    _change(path, change)
    return found


# --------------------------------------------------------------------------- one file


def _change(path: Path, change: Callable[[TOMLDocument], None]) -> None:
    with to_store_errors(f"write the pairs file {path}"):
        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(path.parent):
            before = _read(path)
            document = _parsed(before, path)
            change(document)
            after = tomlkit.dumps(document)
            if after != before:
                after = after.rstrip("\n") + "\n"
                parse_rules(after, path, USER)
                _write(path, after)


def _read(path: Path) -> str:
    return read_text(path) if path.exists() else f"# {_HEADER}\n"


def _parsed(text: str, path: Path) -> TOMLDocument:
    parse_rules(text, path, USER)  # raises if the file is already wrong, and leaves it unchanged
    try:
        return tomlkit.parse(text)
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"the pairs file {path} is not TOML: {error}") from error


def _write(path: Path, text: str) -> None:
    """Replace the file atomically; keep its owner and mode."""
    was = path.stat() if path.exists() else None
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")
        part.chmod(was.st_mode & 0o777 if was is not None else 0o644)
        if was is not None:
            with contextlib.suppress(PermissionError):
                os.chown(part, was.st_uid, was.st_gid)


# --------------------------------------------------------------------------- one target


def _put(document: TOMLDocument, target: str, fields: dict[str, Any]) -> None:
    """Set the fields in the table that has only this target; add a table if there is none."""
    kept = next((t for t in _pairs(document) if _targets(t) == [key_of(target)]), None)
    _take_out(document, target, kept)
    if kept is not None:
        for field in _OF_DRAFTERS:
            kept.pop(field, None)
        kept.update(fields)
        return
    pairs = document.get("pair")
    table: Table | InlineTable
    table = tomlkit.inline_table() if isinstance(pairs, Array) else tomlkit.table()
    table.update({"target": target, **fields})
    text = tomlkit.dumps(document)
    if isinstance(table, Table) and text.strip() and not text.endswith("\n\n"):
        table.trivia.indent = "\n"
    if pairs is None:
        pairs = tomlkit.aot()
        pairs.append(table)
        document["pair"] = pairs
    else:
        pairs.append(table)


def _take_out(document: TOMLDocument, target: str, kept: object = None) -> bool:
    """Remove the target from all tables but `kept`; return whether there was one."""
    pairs, found = document.get("pair", []), False
    for index in reversed(range(len(pairs))):
        table = pairs[index]
        places = [i for i, one in enumerate(_targets(table)) if one == key_of(target)]
        if not places or table is kept:
            continue
        found = True
        if len(places) == len(_targets(table)):
            del pairs[index]
        else:
            for place in reversed(places):
                del table["target"][place]
    if found and not pairs:
        del document["pair"]
    return found


def _pairs(document: TOMLDocument) -> list[Any]:
    return list(document.get("pair", []))


def _targets(table: Any) -> list[str]:
    target = table["target"]
    return [key_of(one) for one in ([target] if isinstance(target, str) else target)]
