"""Rendering of prompts with a model's template: the GGUF's Jinja or the manifest's Go template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from specd import core
from specd.errors import Unsupported
from specd.go_template import analysis
from specd.prompt.answer_format import uses_harmony
from specd.prompt.chat_template import render_chat
from specd.prompt.go_prompt import Thinking, go_chat, go_infill
from specd.prompt.renderer import Job, render_in_process

#: Marks the place of an image in a text: `[img-N]` for a number, `[img]` for the next one.
_TAG: Final = re.compile(r"\[img(?:-([0-9]{1,9}))?\]")
#: Returns the placeholder text for an image number.
ImageMarker = Callable[[int], str]
#: Renders an untrusted Jinja template; `Renderer.render` in the daemon.
RenderJinja = Callable[[Job], str]


def chat_prompt(
    model: core.ModelRef,
    messages: Sequence[core.Message],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    think: bool | str | None = None,
    image_marker: ImageMarker = lambda _: "",
    render_jinja: RenderJinja = render_in_process,
) -> str:
    """Return the prompt for a conversation.

    image_marker(n): placeholder for image n, counted over all messages.
    BOS is not added, but a template may contain it.  Raises InvalidRequest with the template's own
    message, StoreError if it is damaged, and GoTemplateError for a Go template.
    """
    marked = _mark_images(_strip_old_thinking(model, messages), image_marker)
    if (template := model.effective_go_template) is not None:
        return go_chat(template, marked, tools=tools, thinking=_thinking(model, think))
    return _by_jinja(model, marked, tools, think, render_jinja)


def text_prompt(
    model: core.ModelRef,
    prompt: core.TextPrompt,
    *,
    think: bool | str | None = None,
    image_marker: ImageMarker = lambda _: "",
    render_jinja: RenderJinja = render_in_process,
) -> str:
    """Return the prompt for one user text, after the system text and the Modelfile's messages.

    With `raw` it is the text itself.  A suffix uses the Go template if that supports it, else the
    GGUF's infill tokens.  image_marker and errors are those of `chat_prompt`; raises Unsupported
    if the model cannot infill.
    """
    text = _insert_marks(prompt.text, range(len(prompt.images)), image_marker)
    if prompt.raw:
        return text
    if prompt.suffix:
        return _infill(model, prompt, text, think)
    template = prompt.template or model.effective_go_template
    system = model.system if prompt.system is None else prompt.system
    history = () if prompt.context else model.messages
    if template is None and model.chat_template is None:
        return text
    opening = (core.Message(role="system", content=system),) if system else ()
    turns = (*opening, *history, core.Message(role="user", content=text))
    if template is not None:
        return go_chat(template, turns, thinking=_thinking(model, think))
    return _by_jinja(model, turns, (), think, render_jinja)


def _by_jinja(
    model: core.ModelRef,
    messages: Sequence[core.Message],
    tools: Sequence[Mapping[str, object]],
    think: bool | str | None,
    render_jinja: RenderJinja,
) -> str:
    if model.chat_template is None:
        return render_chat(None, messages, adds_bos=False)
    return render_jinja(
        Job(
            template=model.chat_template,
            messages=tuple(replace(message, images=()) for message in messages),
            tools=tuple(tools),
            bos_token=model.bos_token,
            eos_token=model.eos_token,
            think=_gpt_oss_effort(model, think),
        )
    )


def _infill(
    model: core.ModelRef, prompt: core.TextPrompt, text: str, think: bool | str | None
) -> str:
    own = model.go_template if "suffix" in analysis.variables(model.go_template or "") else None
    if template := prompt.template or own:
        return go_infill(template, text, prompt.suffix, _thinking(model, think))
    if model.infill is None:
        raise Unsupported(f"{model.full_name} does not support insert")
    before, after, gap = model.infill
    return f"{before}{text}{after}{prompt.suffix}{gap}"


def _thinking(model: core.ModelRef, think: bool | str | None) -> Thinking:
    can_think = "thinking" in model.capabilities
    return Thinking.of(_gpt_oss_effort(model, think), can_think=can_think)


def _gpt_oss_effort(model: core.ModelRef, think: bool | str | None) -> bool | str | None:
    """Return `think` with "high" in place of "max", which gpt-oss does not have."""
    return "high" if think == "max" and uses_harmony(model) else think


def _strip_old_thinking(
    model: core.ModelRef, messages: Sequence[core.Message]
) -> Sequence[core.Message]:
    """Remove `<think>...</think>` from earlier answers, for the same models as Ollama does."""
    is_r1 = model.name.rpartition("/")[2].partition(":")[0] == "deepseek-r1"
    if model.family != "qwen3" and not is_r1:
        return messages
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    last = users[-1] if users else 0
    return [
        replace(message, content=_strip_thinking(message.content))
        if message.role == "assistant" and i < last
        else message
        for i, message in enumerate(messages)
    ]


def _strip_thinking(content: str) -> str:
    _, closed, answer = content.partition("</think>")
    begins = content.lstrip().startswith("<think>")
    return answer.lstrip() if begins and closed else content


def _mark_images(messages: Sequence[core.Message], mark: ImageMarker) -> list[core.Message]:
    """Return the messages with markers for their images, numbered over all messages."""
    found: list[core.Message] = []
    first = 0
    for message in messages:
        numbers = range(first, first + len(message.images))
        found.append(replace(message, content=_insert_marks(message.content, numbers, mark)))
        first = numbers.stop
    return found


def _insert_marks(text: str, numbers: range, mark: ImageMarker) -> str:
    """Return a message's text with the markers of its images.

    An image's marker replaces its own `[img-N]`, else the next free `[img]`, else it precedes the
    text.  Each image appears once, even if the text repeats its tag.
    """
    if not numbers:
        return text
    own: dict[int, re.Match[str]] = {}
    free: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        if not tag[1]:
            free.append(tag)
        elif int(tag[1]) in numbers:
            own.setdefault(int(tag[1]), tag)
    left = iter(free)
    places = {number: own.get(number) or next(left, None) for number in numbers}
    parts = [mark(number) for number, tag in places.items() if tag is None]
    end = 0
    for tag, number in sorted(_taken(places), key=lambda taken: taken[0].start()):
        parts += (text[end : tag.start()], mark(number))
        end = tag.end()
    return "".join([*parts, text[end:]])


def _taken(places: Mapping[int, re.Match[str] | None]) -> Iterator[tuple[re.Match[str], int]]:
    return ((tag, number) for number, tag in places.items() if tag is not None)
