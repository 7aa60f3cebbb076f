"""The workloads: prompts without repetition, in an order that favours no mode."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Self

from specd.errors import InvalidRequest

#: In the order of runs and tables; each is a file in workloads/.
WORKLOADS = (
    "code_completion",
    "code_description",
    "json",
    "summary",
    "qa",
    "chat",
    "creative",
    "edit",
    "hostile",
)
#: The workload with a useless drafter, which needs its own engine.
HOSTILE = "hostile"


class Form(StrEnum):
    RAW = "raw"  # a text to be continued
    CHAT = "chat"  # a user's turn, in the model's own chat template


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.  begins: the first words of the answer, given so that it has the wanted form."""

    text: str
    begins: str = ""

    @classmethod
    def read(cls, entry: str | Mapping[str, str]) -> Self:
        return cls(entry) if isinstance(entry, str) else cls(**entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts of one kind.  title: the kind.  warm_up: prompts of runs that are not measured."""

    name: str
    title: str
    form: Form
    prompts: tuple[Prompt, ...]
    warm_up: tuple[Prompt, ...]

    def part(self, first: int, n: int) -> Workload:
        """Return n prompts from index `first` on.  Raises InvalidRequest where there are fewer."""
        if first + n > len(self.prompts):
            raise InvalidRequest(
                f"the workload {self.name} has {len(self.prompts)} prompts, not {first + n}"
            )
        return replace(self, prompts=self.prompts[first : first + n])


@cache
def load_workload(name: str) -> Workload:
    """Return one of WORKLOADS.  Raises InvalidRequest for every other name."""
    if name not in WORKLOADS:
        raise InvalidRequest(f"no workload is called {name!r}: there are {', '.join(WORKLOADS)}")
    file = resources.files("specd.bench") / "workloads" / f"{name}.toml"
    data: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    return Workload(
        name=name,
        title=data["title"],
        form=Form(data["form"]),
        prompts=tuple(map(Prompt.read, data["prompts"])),
        warm_up=tuple(map(Prompt.read, data["warm_up"])),
    )


def order(n_prompts: int, n_modes: int) -> Iterator[tuple[int, int]]:
    """Yield (prompt, mode), each combination once.

    Prompts alternate in twos, so that no prompt finds itself in the cache and its modes run close
    in time.  Each two begin with another mode.
    """
    groups = [[i, i + 1] for i in range(0, n_prompts - 1, 2)] or [[0]]
    if n_prompts % 2 and n_prompts > 1:
        groups[-1].append(n_prompts - 1)
    for number, group in enumerate(groups):
        first = number * n_modes // len(groups)
        for turn in range(n_modes):
            for place, prompt in enumerate(group):
                yield prompt, (first + turn + place) % n_modes
