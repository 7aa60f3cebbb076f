"""Describe faults of a pairs file for its author, with the number and the target of the pair."""

from __future__ import annotations

import re
from typing import Any, Final

#: msgspec's message: the text, and the path of the field.
_ERROR: Final = re.compile(r"(?P<words>.*?)( - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_PAIR: Final = re.compile(r"\.pair\[(\d+)\]")
_STEP: Final = re.compile(r"\.(?P<field>\w+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_KINDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "text",
}
#: Replacements for msgspec's texts; {0}, {1} are the pattern's groups.
_WORDS: Final = (
    (r"Object missing required field `(.*)`", "the field `{0}` is missing"),
    (r"Object contains unknown field `(.*)`", "there is no field `{0}`"),
    (r"Invalid enum value '(.*)'", "there is no `{0}`"),
    (r"Expected `(?:array|str)` of length >= 1", "must not be empty"),
    (r"Expected `array` of length (\d+), got (\d+)", "must have {0} items, and has {1}"),
    (r"Expected `(?:float|int)` > (\S+?)(?:\.0)?", "must be above {0}"),
    (r"Expected `(?:float|int)` >= (\S+?)(?:\.0)?", "must be at least {0}"),
    (r"Expected `(?:float|int)` <= (\S+?)(?:\.0)?", "must be at most {0}"),
)
_KIND: Final = r"Expected `(.*)`, got `(.*)`"


def describe_field_error(error: str, document: Any) -> str:
    """Return the fault for the user.  error: msgspec's message.  document: the parsed TOML."""
    found = _ERROR.fullmatch(error)
    assert found is not None  # it takes any text
    path, words = found["path"] or "", _said(found["words"])
    pair = _PAIR.match(path)
    where = pair_label(int(pair[1]), document) if pair is not None else ""
    *around, last = _steps(path[pair.end() :] if pair is not None else path) or [""]
    if words.startswith("must"):
        words, last = f"{last or 'it'} {words}", ""
    return ": ".join(filter(None, [where, *around, last, words]))


def pair_label(index: int, document: Any) -> str:
    """Return the name of a pair for the user, such as "pair 2 (llama3.1:8b)"."""
    target = _target(index, document)
    return f"pair {index + 1} ({target})" if target else f"pair {index + 1}"


def _target(index: int, document: Any) -> str:
    try:
        target = document["pair"][index]["target"]
        first = target[0] if isinstance(target, list) else target
    except (LookupError, TypeError):
        return ""
    return first if isinstance(first, str) else ""


def _said(words: str) -> str:
    for pattern, said in _WORDS:
        if found := re.fullmatch(pattern, words):
            return said.format(*found.groups())
    if found := re.fullmatch(_KIND, words):
        return f"must be {_kinds(found[1])}, and is {_kinds(found[2])}"
    return words


def _kinds(found: str) -> str:
    """Return `str | array` as "text or a list"; null, a missing field, is left out."""
    kinds = [kind for kind in found.split(" | ") if kind != "null"]
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds)


def _steps(path: str) -> list[str]:
    """Return the fields and items of a path, the outermost first."""
    steps: list[str] = []
    for step in _STEP.finditer(path):
        if step["field"]:
            steps.append(f"`{step['field']}`")
        elif steps:
            which = f"item {int(step['index']) + 1}" if step["index"] else "a value"
            steps[-1] = f"{which} of {steps[-1]}"
    return steps
