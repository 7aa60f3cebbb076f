"""A workload's prompts in the chat template of one model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from specd.bench.workload import Form, Prompt
from specd.core import Message
from specd.prompt import render_chat
from specd.store.gguf import read_header
from specd.store.gguf_metadata import read_metadata


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
