"""What is asked in a bench: prompts that occur nowhere twice, in an order that favours no mode."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Self

from specd.core import SpeculationMode
from specd.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode, as a request spells it."""

    name: str
    n_draft_max: int | None
    speculation: SpeculationMode

    @classmethod
    def fixed(cls, n_draft: int) -> Self:
        return cls(f"k = {n_draft}", n_draft, SpeculationMode.FIXED)


PLAIN = Mode("plain", 0, SpeculationMode.AUTO)
AUTO = Mode("auto", None, SpeculationMode.AUTO)


@dataclass(frozen=True, slots=True)
class Workload:
    """warm_up: prompts of their own, for runs that nobody counts."""

    name: str
    prompts: tuple[str, ...]
    warm_up: tuple[str, ...]

    def first(self, n: int) -> Workload:
        """The first n prompts.  InvalidRequest where there are fewer."""
        if n > len(self.prompts):
            raise InvalidRequest(f"the workload has {len(self.prompts)} prompts, not {n}")
        return Workload(self.name, self.prompts[:n], self.warm_up)


def python_workload() -> Workload:
    """Beginnings of Python files: the demo pair knows the look of nothing else."""
    data = tomllib.loads((resources.files("specd.bench") / "python.toml").read_text("utf-8"))
    return Workload("python", tuple(data["prompts"]), tuple(data["warm_up"]))


def order(n_prompts: int, n_modes: int) -> Iterator[tuple[int, int]]:
    """(prompt, mode), each combination once.

    Two prompts take turns, so that none meets its own cache, and stay together, so that a prompt's
    modes are compared within a short time.  Each next two begin with another mode.
    """
    groups = [[i, i + 1] for i in range(0, n_prompts - 1, 2)] or [[0]]
    if n_prompts % 2 and n_prompts > 1:
        groups[-1].append(n_prompts - 1)
    for number, group in enumerate(groups):
        first = number * n_modes // len(groups)
        for turn in range(n_modes):
            for place, prompt in enumerate(group):
                yield prompt, (first + turn + place) % n_modes
