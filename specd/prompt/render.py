"""A model's prompt by the template that counts for it: Jinja of the GGUF, or the manifest's Go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specd import core
from specd.errors import NotImplementedHere
from specd.prompt.chat_template import render_chat, render_text


def chat_prompt(
    model: core.ModelRef,
    messages: Sequence[core.Message],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    think: bool | str | None = None,
    image_mark: str = "",
) -> str:
    """The conversation as text.  image_mark stands for each image, in order, before its turn.

    BOS is not added, but may be the template's.  Raises InvalidRequest with the template's own
    words, StoreError where it is none.
    """
    marked = [_marked(message, image_mark) for message in messages]
    if model.templating is core.Templating.GO:
        raise NotImplementedHere(
            f"{model.name} has a Go template alone, which this version cannot render"
        )
    return render_chat(
        model.chat_template,
        marked,
        tools=tools,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        think=think,
        adds_bos=False,
    )


def text_prompt(
    model: core.ModelRef,
    prompt: core.TextPrompt,
    *,
    think: bool | str | None = None,
    image_mark: str = "",
) -> str:
    """One user turn after the system text and the Modelfile's turns; `raw` is the bare text.

    image_mark and errors are as in `chat_prompt`.
    """
    text = image_mark * len(prompt.images) + prompt.text
    if prompt.raw:
        return text
    if prompt.template is not None or prompt.suffix or model.templating is core.Templating.GO:
        raise NotImplementedHere("Go templates cannot be rendered by this version")
    return render_text(
        model.chat_template,
        text,
        system=model.system if prompt.system is None else prompt.system,
        history=() if prompt.context else model.messages,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        think=think,
        adds_bos=False,
    )


def _marked(message: core.Message, mark: str) -> core.Message:
    if not message.images:
        return message
    return replace(message, content=mark * len(message.images) + message.content)
