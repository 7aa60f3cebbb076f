"""The workloads: prompts without repetition, and their rendering for a model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Self

from specd.core import Message
from specd.errors import InvalidRequest
from specd.prompt import render_chat
from specd.store.gguf import read_header
from specd.store.gguf_metadata import read_metadata

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


# --------------------------------------------------------------------------- chat templates


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderer:
    """Renders prompts for one model.

    chat_template: None writes turns as `User:` and `Assistant:`.
    adds_bos: whether the tokenizer adds a BOS token.
    """

    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = True

    @classmethod
    def of(cls, target: Path) -> Self:
        """Return the renderer for a GGUF, by its metadata.  Raises StoreError."""
        facts = read_metadata(target)
        return cls(
            chat_template=facts.chat_template,
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
            adds_bos=read_header(target).flag("tokenizer.ggml.add_bos_token") is not False,
        )

    def render(self, form: Form, prompt: Prompt) -> str:
        """Return the text to send to specd and peers, which both add the BOS token.

        Raises InvalidRequest with the template's own message.
        """
        if form is Form.RAW:
            return prompt.text + prompt.begins
        if self.chat_template is None:
            return f"User: {prompt.text}\n\nAssistant: {prompt.begins}"
        return prompt.begins.join(
            (
                render_chat(
                    self.chat_template,
                    (Message(role="user", content=prompt.text),),
                    bos_token=self.bos_token,
                    eos_token=self.eos_token,
                    think=False,
                    adds_bos=self.adds_bos,
                ),
                "",
            )
        )
