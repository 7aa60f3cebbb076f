"""The settings: what is set, and what of it does not do what whoever set it may think."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from specd.doctor.finding import Finding, warning
from specd.settings import find_ineffective, unknown_variables

_TOPIC: Final = "settings"


def environment() -> Iterator[Finding]:
    for variable, meant in unknown_variables().items():
        remedy = f"is {meant} meant?" if meant else "docs/settings.md lists all"
        yield warning(_TOPIC, f"{variable} is set, and is no setting", remedy)
    for variable, why in find_ineffective().items():
        yield warning(_TOPIC, f"{variable} is set, and has no effect: {why}", "unset it")
