"""A request with its model: renders the prompt and builds the engine's request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from specd import core
from specd.generation.engine_spec import requested_ctx
from specd.options import Options
from specd.prompt import AnswerFormat, RenderJinja, chat_prompt, text_prompt

#: Ollama's limit for an answer that does not end, in contexts.
MAX_PREDICTED_CONTEXTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """A request, its model and its options.

    drafters: the kinds that may draft for it.
    secret: random text for the markers of images, which no caller's text can contain.
    """

    request: core.GenerateRequest
    model: core.ModelRef
    options: Options
    drafters: tuple[core.DrafterKind, ...]
    secret: str
    render_jinja: RenderJinja

    @property
    def messages(self) -> tuple[core.Message, ...]:
        """The Modelfile's turns and the chat's; the Modelfile's SYSTEM if the chat has none."""
        prompt, model = self.request.prompt, self.model
        asked = prompt.messages if isinstance(prompt, core.ChatPrompt) else ()
        has_system = bool(asked) and asked[0].role == "system"
        system = core.Message(role="system", content=model.system)
        opening = (system,) if model.system and not has_system else ()
        return (*opening, *model.messages, *asked)

    @property
    def droppable_turns(self) -> list[int]:
        """Indices of the turns that may be left out, oldest first.

        The user's last turn stays: an agent may have added many turns after it.
        """
        if not (isinstance(self.request.prompt, core.ChatPrompt) and self.request.truncate):
            return []
        turns = self.messages
        asked = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
        return [i for i, turn in enumerate(turns[:-1]) if turn.role != "system" and i != asked]

    def remaining_messages(self, n_dropped: int) -> list[core.Message]:
        """Return the chat's turns without the `n_dropped` oldest droppable ones."""
        dropped = set(self.droppable_turns[:n_dropped])
        return [turn for i, turn in enumerate(self.messages) if i not in dropped]

    def render(self, n_dropped: int = 0) -> str:
        """Return the prompt as text, without the `n_dropped` oldest droppable turns.

        Raises InvalidRequest with the template's message.
        """
        prompt, think, mark = self.request.prompt, self.request.think, self.image_marker
        if isinstance(prompt, core.ChatPrompt):
            return chat_prompt(
                self.model,
                self.remaining_messages(n_dropped),
                tools=prompt.tools,
                think=think,
                image_marker=mark,
                render_jinja=self.render_jinja,
            )
        return text_prompt(
            self.model, prompt, think=think, image_marker=mark, render_jinja=self.render_jinja
        )

    def image_marker(self, number: int) -> str:
        """Return the text that stands for an image in the prompt."""
        return f"<image {self.secret} {number}>"

    @property
    def context(self) -> tuple[core.TokenId, ...]:
        """Return the tokens of an earlier answer, which stand before the prompt."""
        prompt = self.request.prompt
        return prompt.context if isinstance(prompt, core.TextPrompt) else ()

    def readable_prompt(self) -> str:
        """Return the prompt with readable image markers, without its `context`."""
        text = re.sub(self._any_mark, r"[img-\1]", self.render())
        return text.removeprefix(self.model.bos_token) if self.context else text

    @property
    def _any_mark(self) -> str:
        return f"<image {self.secret} ([0-9]+)>"

    @property
    def format(self) -> AnswerFormat:
        prompt = self.request.prompt
        if isinstance(prompt, core.TextPrompt):
            if prompt.raw:
                return AnswerFormat()
            return AnswerFormat.of(self.model, think=self.request.think)
        return AnswerFormat.of(self.model, tools=prompt.tools, think=self.request.think)

    def images(self, n_dropped: int = 0) -> list[bytes]:
        """Return the images in the order of their numbers in the markers."""
        prompt = self.request.prompt
        if isinstance(prompt, core.TextPrompt):
            return list(prompt.images)
        return [image for turn in self.remaining_messages(n_dropped) for image in turn.images]

    def n_ctx(self, n_slot: int) -> int:
        """Return the requested context in tokens, at most `n_slot`; all of it if automatic."""
        return min(requested_ctx(self.model, self.options) or n_slot, n_slot)

    def engine_request(
        self, rendered: RenderedPrompt, n_slot: int, seed: Callable[[], int]
    ) -> core.EngineRequest:
        """Return the request for the engine.

        n_slot: tokens of the engine's slots.  seed: returns a random seed.
        """
        n_ctx = self.n_ctx(n_slot)
        request, options, text = self.request, self.options, rendered.text
        context, limit = self.context, MAX_PREDICTED_CONTEXTS * n_ctx
        # Deepseek2's attention cannot be shifted; Ollama's default says so too.
        can_shift = self.model.architecture != "deepseek2"
        return core.EngineRequest(
            prompt=rendered.tokens or (*context, *self.pieces(rendered, cut_bos=bool(context))),
            add_bos=not rendered.tokens and self.adds_bos(text),
            sampling=options.sampling(seed),
            n_predict=options.num_predict if 0 <= options.num_predict <= limit else limit,
            n_keep=options.num_keep,
            stop=options.stop,
            visible=self.format.visible,
            grammar=self._grammar(text),
            truncate=request.truncate,
            shift=can_shift if request.shift is None else request.shift,
            n_logprobs=request.n_logprobs,
            want_context=request.want_context,
            n_ctx=n_ctx,
            n_draft_max=options.draft_num_predict,
            drafters=self.drafters,
        )

    def adds_bos(self, prompt: str) -> bool:
        """Whether the engine adds BOS; an earlier answer and many templates have their own."""
        bos = self.model.bos_token
        return not self.context and not (bos and prompt.startswith(bos))

    def pieces(
        self, rendered: RenderedPrompt, *, cut_bos: bool = False
    ) -> Iterator[str | core.Image]:
        """Yield the text between the image markers, and the images in their places."""
        bos = self.model.bos_token
        text = rendered.text.removeprefix(bos) if cut_bos else rendered.text
        if not rendered.images:
            yield text
            return
        # A template may show an image twice, or not at all.
        parts = re.split(self._any_mark, text)
        for place, part in enumerate(parts):
            if place % 2:
                yield core.Image(rendered.images[int(part)])
            elif part:
                yield part

    def _grammar(self, prompt: str) -> core.Grammar | None:
        if self.request.grammar is None:
            return None
        return replace(self.request.grammar, thinking=self.format.thinking_tags(prompt))


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered prompt.

    text: with a marker for each image.
    tokens: the whole prompt, BOS included, if it was tokenized and has no images.
    """

    text: str
    images: tuple[bytes, ...] = ()
    tokens: tuple[core.TokenId, ...] = ()
