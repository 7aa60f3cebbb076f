"""One request, end to end: resolve → pair → render → lease → stream → parse.  Read this first.

Dialects pass a `core.GenerateRequest` and get `core.Delta`s and one final `core.Done`; every
failure is a `SpecdError`.  Nothing here knows HTTP, and nothing below knows dialects.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass, replace
from typing import Final, Protocol

from specd import core, errors
from specd.generation.context_fit import fit_to_context
from specd.generation.embedding import embed_all
from specd.generation.engine_spec import drafters, engine_spec
from specd.generation.resolved_request import RenderedPrompt, ResolvedRequest
from specd.generation.upstream import chat_request, upstream_pair, upstream_spec
from specd.metrics import current_record
from specd.options import Options, parse
from specd.prompt import AnswerParser, RenderJinja, render_in_process
from specd.scheduler import Lease
from specd.settings import Settings

log = logging.getLogger(__name__)

#: Most retries of one request because its model changed.
_MAX_CHANGES: Final = 8


class Pairing(Protocol):
    """Finds the drafter of a target: `pairs.Pairs`."""

    def pair(self, target: core.LocalModel) -> core.Pair: ...


class Leasing(Protocol):
    """Lends loaded models: `scheduler.SchedulerLoop`."""

    def lease(
        self,
        spec: core.LoadSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AbstractAsyncContextManager[Lease]: ...

    def unload(self, model: core.ModelRef) -> None: ...


class Models(Protocol):
    """All models by name: `Catalog`."""

    def resolve(self, name: str) -> core.ModelRef: ...


@dataclass(frozen=True, slots=True)
class _Leased:
    """A lease, with the model as it was when its engine was found."""

    lease: Lease
    pair: core.Pair
    model: core.ModelRef
    options: Options


class Generation:
    """Answers requests with the models of the catalog.

    clock: seconds.  random_seed: returns a seed for requests that set none.
    render_jinja: renders the models' Jinja templates.
    on_leased: called with the pair of each lease.
    on_answered: called for each complete answer that allowed drafts, with the pair and the weights
    of the drafter that the engine was loaded with, or None.
    """

    def __init__(
        self,
        models: Models,
        pairs: Pairing,
        scheduler: Leasing,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.perf_counter,
        random_seed: Callable[[], int] = lambda: secrets.randbits(32),
        render_jinja: RenderJinja = render_in_process,
        on_leased: Callable[[core.Pair], None] = lambda _pair: None,
        on_answered: Callable[[core.Pair, str | None], None] = lambda _pair, _drafter: None,
    ) -> None:
        self._models = models
        self._pairs = pairs
        self._scheduler = scheduler
        self._settings = settings
        self._clock = clock
        self._random_seed = random_seed
        self._render_jinja = render_jinja
        self._on_leased = on_leased
        self._on_answered = on_answered

    def adjust(self, settings: Settings) -> None:
        """Use these settings for later requests."""
        self._settings = settings

    async def generate(
        self, request: core.GenerateRequest
    ) -> AsyncGenerator[core.Delta | core.Done, None]:
        """Yield Deltas that are not empty, then one Done; raise SpecdError.

        Closing it early frees the slot.  With the Done the slot is free.
        """
        started = self._clock()
        record = current_record()
        record.begin_answer(request.model.name)
        async with self._lease(request) as leased:
            load_ns = int((self._clock() - started) * 1e9)
            events, parser = await self._submit(request, leased)
            async with aclosing(events):
                async for event in events:
                    match event:
                        case core.Started():
                            record.slot_assigned(event)
                        case core.Token():
                            record.add_tokens(event.n_tokens)
                            if (delta := _delta(event, parser)) is not None:
                                yield delta
                        case core.Delta() if event != core.Delta():  # instead of tokens
                            record.add_tokens(1)
                            yield event
                        case core.Done():
                            if parser is not None and (rest := parser.finish()) != core.Delta():
                                yield rest
                            record.done = self._finish(event, leased, load_ns)
                        case core.Failed():
                            raise event.error()
        if record.done is None:
            raise errors.EngineError("model runner has unexpectedly stopped")
        yield record.done

    async def _submit(
        self, request: core.GenerateRequest, leased: _Leased
    ) -> tuple[core.Stream[core.Event | core.Delta], AnswerParser | None]:
        """Return the events of the answer, and the parser of its text if they are tokens."""
        lease, model = leased.lease, leased.model
        resolved = self._resolve(request, model, leased.options)
        if lease.takes_messages:
            return lease.chat(chat_request(resolved)), None
        rendered = await fit_to_context(resolved, lease)
        engine_request = resolved.engine_request(rendered, lease.facts.n_ctx, self._random_seed)
        return lease.generate(engine_request), resolved.format.parser(rendered.text)

    def _finish(self, done: core.Done, leased: _Leased, load_ns: int) -> core.Done:
        if done.speculation.reason != core.NoPair.DISABLED_BY_USER:
            self._on_answered(leased.pair, leased.lease.drafter)
        stats = _pair_stats(done.speculation, leased.pair, leased.lease)
        return replace(done, load_ns=load_ns, speculation=stats)

    async def count_tokens(self, request: core.GenerateRequest) -> int:
        """Return the number of tokens of the whole prompt; loads the model.

        Raises Unsupported if its engine does not tokenize.
        """
        async with self._lease(request) as leased:
            lease = leased.lease
            resolved = self._resolve(request, leased.model, leased.options)
            if not lease.can_tokenize:
                raise errors.Unsupported(f"the engine of {request.model.name} counts no tokens")
            text = await asyncio.to_thread(resolved.render)
            rendered = RenderedPrompt(text, tuple(resolved.images()))
            asked = resolved.engine_request(rendered, lease.facts.n_ctx, lambda: 0)
            pieces = [piece for piece in asked.prompt if not isinstance(piece, int)]
            n_ids = len(asked.prompt) - len(pieces)
            return n_ids + len(await lease.tokenize(*pieces, add_bos=asked.add_bos))

    async def embed(self, request: core.EmbedRequest) -> core.Embeddings:
        """Return one vector per text; raise EmbeddingsUnsupported if the model cannot embed."""
        started = self._clock()
        async with self._lease(request, embeds=True) as leased:
            if not leased.lease.can_embed:
                raise errors.EmbeddingsUnsupported
            load_ns = int((self._clock() - started) * 1e9)
            entries = await embed_all(request, leased.lease, leased.options.num_ctx)
            found = core.Embeddings(entries=entries, load_ns=load_ns)
            current_record().add_embeddings(found)
            return found

    async def load(self, request: core.LoadRequest) -> None:
        """Load the model; return once it is ready."""
        async with self._lease(request):
            log.info("%s is loaded", request.model.name)

    async def unload(self, model: core.ModelRef) -> None:
        """Unload the model once it is idle."""
        self._scheduler.unload(model)

    async def pair(self, model: core.ModelRef) -> core.Pair:
        """Return the model with its drafter, or with the reason why it has none."""
        if isinstance(model, core.UpstreamModel):
            return upstream_pair(model)
        assert isinstance(model, core.LocalModel)
        return await asyncio.to_thread(self._pairs.pair, model)

    async def render(self, request: core.GenerateRequest) -> str:
        """Return the whole prompt as text; `[img-0]` stands for the first image.

        The model is loaded only if the request has a `context`, to turn its tokens into text.
        Raises Unsupported for an upstream model.
        """
        if isinstance(request.model, core.UpstreamModel):
            raise errors.Unsupported(f"the prompts of {request.model.name} are rendered upstream")
        prompt = request.prompt
        if not (isinstance(prompt, core.TextPrompt) and prompt.context):
            options = Options.merge(parse(request.model.parameters), request.options)
            resolved = self._resolve(request, request.model, options)
            return await asyncio.to_thread(resolved.readable_prompt)
        async with self._lease(request) as leased:
            resolved = self._resolve(request, leased.model, leased.options)
            text = await asyncio.to_thread(resolved.readable_prompt)
            return await leased.lease.detokenize(resolved.context) + text

    def _resolve(
        self, request: core.GenerateRequest, model: core.ModelRef, options: Options
    ) -> ResolvedRequest:
        return ResolvedRequest(
            request=request,
            model=model,
            options=options,
            drafters=drafters(self._settings),
            secret=secrets.token_hex(8),
            render_jinja=self._render_jinja,
        )

    @asynccontextmanager
    async def _lease(
        self, request: core.LoadRequest, *, embeds: bool = False
    ) -> AsyncIterator[_Leased]:
        """Lease the request's model.

        If it was deleted or replaced before its files were read, lease the model that has its name
        now.
        """
        model = request.model
        async with AsyncExitStack() as stack:
            for n_changes in itertools.count():
                if embeds and "embedding" not in model.capabilities:
                    raise errors.EmbeddingsUnsupported
                current_record().model = model.name
                options = Options.merge(parse(model.parameters), request.options)
                pair = await self.pair(model)
                spec = self._spec(pair, options, embeds=embeds)
                leasing = self._scheduler.lease(spec, model, pair, request.keep_alive_s)
                try:
                    lease = await stack.enter_async_context(leasing)
                    break
                except (errors.StoreError, errors.LoadFailed):
                    latest = await asyncio.to_thread(self._models.resolve, model.name)
                    if latest.version == model.version or n_changes == _MAX_CHANGES:
                        raise
                    log.info("%s was replaced during the request, trying once more", model.name)
                    model = latest
            if not spec.embeds:
                self._on_leased(pair)
            yield _Leased(lease, pair, model, options)

    def _spec(self, pair: core.Pair, options: Options, *, embeds: bool) -> core.LoadSpec:
        target = pair.target
        if isinstance(target, core.UpstreamModel):
            return upstream_spec(target, embeds=embeds)
        assert isinstance(target, core.LocalModel)
        return engine_spec(target, pair, options, self._settings, embeds=embeds)


def _pair_stats(
    stats: core.SpeculationStats, pair: core.Pair, lease: Lease
) -> core.SpeculationStats:
    """Return the statistics with the names and reasons of this request's pair, where they apply.

    Models with the same weights share an engine, which knows only the first one's pair.  A pair may
    also change while the engine is loaded.
    """
    facts, own = lease.facts, pair.drafter
    if facts.no_pair_reason == core.NoPair.NOT_EXACT:
        return stats
    if facts.steering is not core.Steering.PER_STEP:  # the engine chooses its drafter itself
        known = stats.reason or stats.drafter
        return stats if known else replace(stats, reason=pair.reason or "", detail=pair.detail)
    if facts.drafter is not None:
        is_own = own is not None and str(own.weights) == lease.drafter
        if own is None or not is_own or stats.pair_source in {None, core.BUILTIN}:
            return stats
        return replace(stats, drafter=own.name, pair_source=own.source)
    is_parked = stats.state is core.SpeculationState.PARKED  # by measurement, of prompt lookup
    if own is None:
        reason = stats.reason if is_parked else pair.reason or ""
        return replace(stats, reason=reason, detail=pair.detail)
    if stats.reason == core.NoPair.DISABLED_BY_USER:
        return stats
    # Prompt lookup may have its own reason not to draft; the reason of the load comes first.
    reason = stats.reason if is_parked else facts.no_pair_reason or stats.reason
    detail = facts.no_pair_detail
    if lease.drafter is None and facts.no_pair_reason != core.NoPair.NO_VRAM:
        detail = f"{own.name} drafts from the next load of {pair.target.name}."
    return replace(stats, reason=reason, detail=detail)


def _delta(token: core.Token, parser: AnswerParser | None) -> core.Delta | None:
    """Return the parsed text; None while the parser holds back what may be part of a tag."""
    delta = core.Delta(content=token.text) if parser is None else parser.feed(token.text)
    if token.logprobs:
        delta = replace(delta, logprobs=token.logprobs)
    return None if delta == core.Delta() else delta
