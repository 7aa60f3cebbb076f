"""One request, end to end: resolve → pair → render → lease → stream → parse.  Read this first.

Dialects pass a `core.GenerateRequest` and get `core.Delta`s and one final `core.Done`; every
failure is a `SpecdError`.  Nothing here knows HTTP, and nothing below knows dialects.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from specd import core, errors
from specd.generation.context_fit import fit_to_context
from specd.generation.embedding import embed_all
from specd.generation.engine_spec import drafters, engine_spec
from specd.generation.resolved_request import RenderedPrompt, ResolvedRequest
from specd.generation.retry import Models, RetryPolicy, with_retries
from specd.metrics import current_record
from specd.options import Options
from specd.prompt import AnswerParser, RenderJinja, render_in_process
from specd.scheduler import Lease
from specd.settings import Settings

log = logging.getLogger(__name__)


class Pairing(Protocol):
    """Finds the drafter of a target: `pairs.Pairs`."""

    def pair(self, target: core.ModelRef) -> core.Pair: ...


class Leasing(Protocol):
    """Lends loaded models: `scheduler.SchedulerLoop`."""

    def lease(
        self,
        spec: core.EngineSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AbstractAsyncContextManager[Lease]: ...

    def unload(self, model: core.ModelRef) -> None: ...


class Generation:
    """Answers requests with the models of the library.

    clock: seconds.  random_seed: returns a seed for requests that set none.
    render_jinja: renders the models' Jinja templates.
    on_leased: called with the pair of each lease.
    on_answered: called for each complete answer that allowed drafts, with the pair and the weights
    of the drafter that the engine was loaded with, or None.
    """

    def __init__(
        self,
        library: Models,
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
        self._library = library
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
        """Yield Deltas, then one Done; raise SpecdError.  Closing it early frees the slot."""
        started = self._clock()
        retry_policy = RetryPolicy(self._library, request.model)
        answered = False
        while True:
            try:
                model = await asyncio.to_thread(retry_policy.resolve)
                current_record().begin_answer(model.name)
                async with aclosing(self._answer(self._resolve(request, model), started)) as events:
                    async for event in events:
                        answered = True
                        yield event
                return
            except errors.SpecdError as error:
                if answered or not await retry_policy.should_retry(error):
                    raise

    async def _answer(
        self, resolved: ResolvedRequest, started: float
    ) -> AsyncGenerator[core.Delta | core.Done, None]:
        async with self._lease(resolved.model, resolved.options, resolved.request.keep_alive_s) as (
            lease,
            pair,
        ):
            load_ns = int((self._clock() - started) * 1e9)
            rendered = await fit_to_context(resolved, lease)
            parser = resolved.format.parser(rendered.text)
            engine_request = resolved.engine_request(rendered, lease.facts.n_ctx, self._random_seed)
            record = current_record()
            async with aclosing(lease.generate(engine_request)) as events:
                async for event in events:
                    match event:
                        case core.Started():
                            record.slot_assigned(event)
                        case core.Token():
                            record.add_tokens(event.n_tokens)
                            if (delta := _delta(event, parser)) is not None:
                                yield delta
                        case core.Done():
                            if parser is not None and (rest := parser.finish()) != core.Delta():
                                yield rest
                            if event.speculation.reason != core.NoPair.DISABLED_BY_USER:
                                self._on_answered(pair, lease.drafter)
                            stats = _pair_stats(event.speculation, pair, lease)
                            record.done = replace(event, load_ns=load_ns, speculation=stats)
                            yield record.done
                        case core.Failed():
                            raise event.error()

    async def count_tokens(self, request: core.GenerateRequest) -> int:
        """Return the number of tokens of the whole prompt; loads the model."""

        async def count(model: core.ModelRef) -> int:
            return await self._count(self._resolve(request, model))

        return await with_retries(self._library, request.model, count)

    async def _count(self, resolved: ResolvedRequest) -> int:
        async with self._lease(resolved.model, resolved.options, resolved.request.keep_alive_s) as (
            lease,
            _,
        ):
            text = await asyncio.to_thread(resolved.render)
            rendered = RenderedPrompt(text, tuple(resolved.images()))
            request = resolved.engine_request(rendered, lease.facts.n_ctx, lambda: 0)
            pieces = [piece for piece in request.prompt if not isinstance(piece, int)]
            n_ids = len(request.prompt) - len(pieces)
            return n_ids + len(await lease.tokenize(*pieces, add_bos=request.add_bos))

    async def embed(self, request: core.EmbedRequest) -> core.Embeddings:
        """Return one vector per text; raise EmbeddingsUnsupported if the model cannot embed."""
        started = self._clock()

        async def embed(model: core.ModelRef) -> core.Embeddings:
            options = Options.merge(model.parameters, request.options)
            if "embedding" not in model.capabilities:
                raise errors.EmbeddingsUnsupported
            return await self._embed(request, model, options, started)

        return await with_retries(self._library, request.model, embed)

    async def _embed(
        self, request: core.EmbedRequest, model: core.ModelRef, options: Options, started: float
    ) -> core.Embeddings:
        leased = self._lease(model, options, request.keep_alive_s, embeds=True)
        async with leased as (lease, _):
            load_ns = int((self._clock() - started) * 1e9)
            entries = await embed_all(request, lease, options.num_ctx)
            found = core.Embeddings(entries=entries, load_ns=load_ns)
            current_record().add_embeddings(found)
            return found

    async def load(
        self,
        model: str,
        options: Mapping[str, object] | None = None,
        keep_alive_s: float | None = None,
    ) -> None:
        """Load the model; return once it is ready."""

        async def load(found: core.ModelRef) -> None:
            merged = Options.merge(found.parameters, options or {})
            async with self._lease(found, merged, keep_alive_s):
                log.info("%s is loaded", found.name)

        await with_retries(self._library, model, load)

    async def unload(self, model: str) -> None:
        """Unload the model once it is idle; raise ModelNotFound if the name is unknown."""
        self._scheduler.unload(await asyncio.to_thread(self._library.resolve, model))

    async def pair(self, model: core.ModelRef) -> core.Pair:
        """Return the model with its drafter, or with the reason why it has none."""
        return await asyncio.to_thread(self._pairs.pair, model)

    async def render(self, request: core.GenerateRequest) -> str:
        """Return the whole prompt as text; `[img-0]` stands for the first image.

        The model is loaded only if the request has a `context`, to turn its tokens into text.
        """

        async def render(model: core.ModelRef) -> str:
            resolved = self._resolve(request, model)
            text = await asyncio.to_thread(resolved.readable_prompt)
            return await self._context_text(resolved) + text if resolved.context else text

        return await with_retries(self._library, request.model, render)

    async def _context_text(self, resolved: ResolvedRequest) -> str:
        async with self._lease(resolved.model, resolved.options, resolved.request.keep_alive_s) as (
            lease,
            _,
        ):
            return await lease.detokenize(resolved.context)

    def _resolve(self, request: core.GenerateRequest, model: core.ModelRef) -> ResolvedRequest:
        options = Options.merge(model.parameters, request.options)
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
        self,
        model: core.ModelRef,
        options: Options,
        keep_alive_s: float | None,
        *,
        embeds: bool = False,
    ) -> AsyncIterator[tuple[Lease, core.Pair]]:
        current_record().model = model.name
        pair = await self.pair(model)
        spec = engine_spec(pair, options, self._settings, embeds=embeds)
        async with self._scheduler.lease(spec, model, pair, keep_alive_s) as lease:
            if not spec.embeds:
                self._on_leased(pair)
            yield lease, pair


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
