"""Implement `specd ps`: list the models in memory, each with its drafter.

A terminal gets Ollama's columns with indented sentences below each model, which fit no column.  A
pipe gets a table with one header, one line per model and two more columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from specd.cli.formatting import (
    format_bytes,
    format_expiry,
    make_console,
    print_lines,
    print_with_details,
    table_lines,
)
from specd.cli.sync_client import Json, SyncClient, sync_client

if TYPE_CHECKING:
    from rich.console import Console

_HEADERS = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")
_PAIR_FIELDS = ("DRAFTER", "GAIN")


def ps(
    prefix: Annotated[str, typer.Argument(help="Only models with this prefix.")] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all details as JSON.")] = False,
) -> None:
    print_models(sync_client(), make_console(), prefix, as_json=as_json)


def print_models(
    client: SyncClient, console: Console, prefix: str = "", *, as_json: bool = False
) -> None:
    answer = client.get("/api/ps")
    models = [
        model
        for model in answer.get("models") or []
        if model["name"].lower().startswith(prefix.lower())
    ]
    if as_json:
        text = json.dumps({"models": models}, indent=2, ensure_ascii=False)
        console.print(text, markup=False, soft_wrap=True)
    elif console.is_terminal:
        lines = table_lines([_HEADERS, *map(_row, models)], console.width)
        print_with_details(console, lines, [pair_lines(one.get("specd") or {}) for one in models])
    else:
        rows = [(*_row(model), *_pair_fields(model.get("specd") or {})) for model in models]
        print_lines(console, table_lines([(*_HEADERS, *_PAIR_FIELDS), *rows], console.width))


def _row(model: Json) -> tuple[str, ...]:
    return (
        model["name"],
        model["digest"][:12],
        format_bytes(model["size"]),
        _processor(model["size"], model.get("size_vram", 0)),
        str(model.get("context_length", "")),
        format_expiry(model["expires_at"]),
    )


def _processor(size: int, size_vram: int) -> str:
    """Return where a model is, in Ollama's words."""
    if size_vram <= 0:
        return "100% CPU"
    if size_vram >= size:
        return "100% GPU"
    cpu = round((size - size_vram) / size * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def _pair_fields(specd: Json) -> tuple[str, str]:
    """Return the two columns on the pair for a script."""
    gain = specd.get("gain")
    reason = specd.get("reason")
    none = f"none ({reason})" if reason else "none"
    drafter = specd.get("drafter")
    return str(drafter["name"]) if drafter else none, "-" if gain is None else f"{gain:.2f}×"


# --------------------------------------------------------------------------- sentences


#: Reasons without drafts in the last answer, although the drafter is not parked.
_OF_ONE_ANSWER: Final = {"answer_too_short", "no_good_guess", "prompt_too_long"}


def pair_lines(specd: Json) -> list[str]:
    """Return the lines on the pair for a person; none for a daemon other than specd."""
    if not specd:
        return []
    drafter = specd.get("drafter")
    why = " — ".join(filter(None, (specd.get("reason"), specd.get("detail"))))
    if drafter:
        verb = "parked" if why and specd.get("reason") not in _OF_ONE_ANSWER else "drafts"
        name = f"{verb}: {drafter['name']} ({drafter['pair_source']})"
        lines = [" · ".join([name, _place(drafter), *_gain(specd)]), _target(specd), why]
    elif specd.get("state") == "active":
        none = f"no drafter: {why}" if why else ""
        lines = [" · ".join(["drafts: prompt lookup", *_gain(specd)]), _target(specd), none]
    else:
        lines = [f"plain: {why}" if why else "plain", _target(specd)]
    if exactness := format_exactness(specd):
        lines.append(f"same text for a seed: {exactness}")
    return [line for line in lines if line]


#: The conditions under which a seed may give the same text.
_CONDITIONS: Final = {
    "speculation": "with and without drafts",
    "parallel": "alone or with parallel requests",
    "prompt_cache": "with a cached prompt or a new one",
}
#: The effects of SPECD_EXACT.
_ENFORCED: Final = {
    "no_drafts": "drafting off",
    "cache_per_slot": "one cache per slot",
    "one_slot_at_a_time": "one slot at a time",
    "narrow_prompts": "prompts read in narrower passes",
    "prompts_in_pieces": "prompts read in pieces",
}


def format_exactness(specd: Json) -> str:
    """Return under which conditions a seed gives the same text; "" if that is unknown."""
    found = specd.get("exact")
    if not found:
        return ""
    same = [words for kind, words in _CONDITIONS.items() if found.get(kind)]
    other = [words for kind, words in _CONDITIONS.items() if not found.get(kind)]
    sentences = [f"{'; '.join(same)}."] if same else []
    if other:
        sentences.append(f"{'Not' if same else 'not'} guaranteed: {'; '.join(other)}.")
    if enforced := found.get("enforced"):
        changes = ", ".join(_ENFORCED.get(name, str(name)) for name in enforced)
        sentences.append(f"(SPECD_EXACT: {changes})")
    return " ".join(sentences)


def _target(specd: Json) -> str:
    """Return the target's memory; "" if SIZE and PROCESSOR already say it."""
    target = specd.get("target")
    if not target or not (specd.get("drafter") or len(_devices(target)) > 1):
        return ""
    return f"target: {_place(target)}"


def _place(memory: Json) -> str:
    """Return bytes and device, for each device."""
    devices = _devices(memory)
    if len(devices) < 2:
        return f"{format_bytes(memory['size'])} on {memory['device']}"
    return ", ".join(f"{format_bytes(n)} on {name}" for name, n in devices.items())


def _devices(memory: Json) -> dict[str, int]:
    return {name: n for name, n in (memory.get("devices") or {}).items() if n}


def _gain(specd: Json) -> list[str]:
    n = specd.get("requests", 0)
    over = f"{n} request{'' if n == 1 else 's'}"
    gain = specd.get("gain")
    if gain is None:
        return [fact for fact in (over if n else "", _acceptance(specd)) if fact]
    rate = f"{specd['acceptance_rate']:.0%} accepted" if specd.get("draft_n") else ""
    return [fact for fact in (f"{gain:.2f}× over {over}", _acceptance(specd, rate)) if fact]


def _acceptance(specd: Json, rate: str = "") -> str:
    """Return the acceptance rate that drafting needs, after `rate`, the measured one."""
    needed = format_threshold(specd)
    if needed and not rate and needed != _NO_DRAFT_PAYS:
        needed += " accepted"
    return ", ".join(filter(None, (rate, needed)))


_NO_DRAFT_PAYS: Final = "no draft can pay here"


def format_threshold(specd: Json) -> str:
    """Return the acceptance rate that drafting needs; "" if that is unknown."""
    needed = specd.get("threshold")
    if needed is None:
        return ""
    if specd.get("threshold_source") == "setting":
        return f"stops below {needed:.0%}"
    return f"pays from {needed:.0%}" if needed < 1.0 else _NO_DRAFT_PAYS
