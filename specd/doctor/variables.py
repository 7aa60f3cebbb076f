"""Check for variables that are unknown or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specd.doctor.finding import Finding, warning
from specd.settings import find_ineffective, unknown_variables

_TOPIC: Final = "settings"


def environment() -> Iterator[Finding]:
    for variable, meant in unknown_variables().items():
        remedy = f"did you mean {meant}?" if meant else "docs/settings.md lists all"
        yield warning(_TOPIC, f"{variable} is set, but is not a setting", remedy)
    for variable, why in find_ineffective().items():
        yield warning(_TOPIC, f"{variable} is set, but has no effect: {why}", "unset it")
