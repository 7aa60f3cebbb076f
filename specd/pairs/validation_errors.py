"""What is wrong with a pairs file, in the words of whoever wrote it: pairs are counted from 1 and
called by their targets.
"""

from __future__ import annotations

import re
from typing import Any, Final

#: What msgspec says: its words, and where.
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
#: In place of msgspec's words; {0}, {1} are what the pattern has found.
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
    """error: msgspec's.  document: the file, as TOML has it."""
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
    """Such as: pair 2 (llama3.1:8b)."""
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
    """`str | array` as "text or a list"; null stands for a field that is left out."""
    kinds = [kind for kind in found.split(" | ") if kind != "null"]
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds)


def _steps(path: str) -> list[str]:
    """What stands in what, the widest first."""
    steps: list[str] = []
    for step in _STEP.finditer(path):
        if step["field"]:
            steps.append(f"`{step['field']}`")
        elif steps:
            which = f"item {int(step['index']) + 1}" if step["index"] else "a value"
            steps[-1] = f"{which} of {steps[-1]}"
    return steps
