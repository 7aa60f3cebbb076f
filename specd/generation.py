"""One request, end to end: resolve → pair → render → lease → stream → parse.  Read this first.

Dialects hand in a `core.GenerateRequest` and get `core.Delta`s and one final `core.Done`; whatever
goes wrong is a `SpecdError`.  Nothing here knows HTTP, and nothing below knows dialects.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from specd import core, errors
from specd.options import Options
from specd.prompt import ReasoningParser, render_chat, render_text
from specd.scheduler import Lease
from specd.settings import Settings

log = logging.getLogger(__name__)

# Ollama's bound on a model that never stops, in contexts.
MAX_PREDICTED_CONTEXTS = 10

# Ollama writes the second where a Modelfile names no template.
_NO_TEMPLATE = (None, "{{ .Prompt }}")


class Models(Protocol):
    """Where models lie: `store.Library`."""

    def resolve(self, name: str) -> core.ModelRef: ...


class Pairing(Protocol):
    """Which drafter serves a target: `pairs.Pairs`."""

    def pair(self, target: core.ModelRef) -> core.Pair: ...


class Leasing(Protocol):
    """Who may use a resident model: `scheduler.SchedulerLoop`."""

    def lease(
        self,
        spec: core.EngineSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AbstractAsyncContextManager[Lease]: ...

    def unload(self, model: core.ModelRef) -> None: ...


class Generation:
    """clock: seconds; random_seed: for requests that ask for any seed."""

    def __init__(
        self,
        library: Models,
        pairs: Pairing,
        scheduler: Leasing,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.perf_counter,
        random_seed: Callable[[], int] = lambda: secrets.randbits(32),
    ) -> None:
        self._library = library
        self._pairs = pairs
        self._scheduler = scheduler
        self._settings = settings
        self._clock = clock
        self._random_seed = random_seed

    async def generate(
        self, request: core.GenerateRequest
    ) -> AsyncGenerator[core.Delta | core.Done, None]:
        """Deltas, then exactly one Done, or SpecdError.  Closing it early frees the slot."""
        started = self._clock()
        call = await asyncio.to_thread(self._resolve, request)
        answered = False
        try:
            async with aclosing(self._answer(call, started)) as events:
                async for event in events:
                    answered = True
                    yield event
            return
        except errors.EngineCrashed:
            if answered:
                raise
        # The engine died before it said anything, often while it was idle: a new one may well
        # answer, and the caller need not know.  Once: a request that kills must not kill for ever.
        log.warning("%s: the engine died before it answered, trying once more", call.model.name)
        async with aclosing(self._answer(call, started)) as events:
            async for event in events:
                yield event

    async def _answer(
        self, call: _Call, started: float
    ) -> AsyncGenerator[core.Delta | core.Done, None]:
        async with self._lease(call.model, call.options, call.request.keep_alive_s) as (
            lease,
            pair,
        ):
            load_ns = int((self._clock() - started) * 1e9)
            text = await _fitted(call, lease)
            parser = call.parser(text)
            engine_request = call.engine_request(text, lease.facts.n_ctx, self._random_seed)
            async with aclosing(lease.generate(engine_request)) as events:
                async for event in events:
                    match event:
                        case core.Token():
                            if (delta := _delta(event, parser)) is not None:
                                yield delta
                        case core.Done():
                            if parser is not None and (rest := parser.finish()) != core.Delta():
                                yield rest
                            _log(call.model, event)
                            stats = _of_pair(event.speculation, pair)
                            yield replace(event, load_ns=load_ns, speculation=stats)
                        case core.Failed():
                            if event.kind is core.FailureKind.CRASHED:
                                # Until it is gone, the scheduler would grant it again.
                                await lease.engine.ended()
                            raise _error(event)

    async def load(
        self,
        model: str,
        options: Mapping[str, object] | None = None,
        keep_alive_s: float | None = None,
    ) -> None:
        """Returns once the model is ready."""
        found = await asyncio.to_thread(self._library.resolve, model)
        merged = Options.merge(found.parameters, options or {})
        async with self._lease(found, merged, keep_alive_s):
            log.info("%s is loaded", found.name)

    async def unload(self, model: str) -> None:
        """Let it go once it is idle; ModelNotFound where there is none of that name."""
        self._scheduler.unload(await asyncio.to_thread(self._library.resolve, model))

    def render(self, request: core.GenerateRequest) -> str:
        """The prompt before anything is left out to make it fit.  Reads files: call in a thread."""
        return self._resolve(request).render()

    def _resolve(self, request: core.GenerateRequest) -> _Call:
        model = self._library.resolve(request.model)
        options = Options.merge(model.parameters, request.options)
        drafters = _drafters(self._settings)
        return _Call(request=request, model=model, options=options, drafters=drafters)

    @asynccontextmanager
    async def _lease(
        self, model: core.ModelRef, options: Options, keep_alive_s: float | None
    ) -> AsyncIterator[tuple[Lease, core.Pair]]:
        pair = await asyncio.to_thread(self._pairs.pair, model)
        spec = _spec(pair, options, self._settings)
        async with self._scheduler.lease(spec, model, pair, keep_alive_s) as lease:
            yield lease, pair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A request whose model is known."""

    request: core.GenerateRequest
    model: core.ModelRef
    options: Options
    drafters: tuple[core.DrafterKind, ...]

    @property
    def messages(self) -> tuple[core.Message, ...]:
        """A chat's turns with the Modelfile's before them; its SYSTEM only where there is none."""
        prompt, model = self.request.prompt, self.model
        asked = prompt.messages if isinstance(prompt, core.ChatPrompt) else ()
        has_system = bool(asked) and asked[0].role == "system"
        system = core.Message(role="system", content=model.system)
        opening = (system,) if model.system and not has_system else ()
        return (*opening, *model.messages, *asked)

    @property
    def droppable(self) -> list[int]:
        """Indices of the turns that may be left out, oldest first."""
        if not (isinstance(self.request.prompt, core.ChatPrompt) and self.request.truncate):
            return []
        return [i for i, turn in enumerate(self.messages[:-1]) if turn.role != "system"]

    def render(self, n_dropped: int = 0) -> str:
        """The prompt as text, without so many of the oldest turns.

        Raises InvalidRequest with the template's own words.
        """
        model, prompt = self.model, self.request.prompt
        raw = isinstance(prompt, core.TextPrompt) and prompt.raw
        if not raw and model.chat_template is None and model.go_template not in _NO_TEMPLATE:
            raise errors.NotImplementedHere(
                f"{model.name} has a Go template alone, which this version cannot render"
            )
        if isinstance(prompt, core.ChatPrompt):
            dropped = set(self.droppable[:n_dropped])
            return render_chat(
                model.chat_template,
                [turn for i, turn in enumerate(self.messages) if i not in dropped],
                tools=prompt.tools,
                bos_token=model.bos_token,
                eos_token=model.eos_token,
                think=self.request.think,
                adds_bos=False,
            )
        return render_text(
            None if raw else model.chat_template,
            prompt.text,
            system=model.system if prompt.system is None else prompt.system,
            history=() if prompt.context else model.messages,
            bos_token=model.bos_token,
            eos_token=model.eos_token,
            think=self.request.think,
            adds_bos=False,
        )

    def parser(self, text: str) -> ReasoningParser | None:
        """None where the model cannot think, or was told not to."""
        raw = isinstance(self.request.prompt, core.TextPrompt) and self.request.prompt.raw
        if raw or self.request.think is False or "thinking" not in self.model.capabilities:
            return None
        return ReasoningParser.after(text)

    def engine_request(self, text: str, n_ctx: int, seed: Callable[[], int]) -> core.EngineRequest:
        request, options = self.request, self.options
        bos, limit = self.model.bos_token, MAX_PREDICTED_CONTEXTS * n_ctx
        context = request.prompt.context if isinstance(request.prompt, core.TextPrompt) else ()
        # Deepseek2's attention cannot be shifted; Ollama's default says so too.
        can_shift = self.model.architecture != "deepseek2"
        return core.EngineRequest(
            # An earlier answer brings its own BOS, and so do many templates.
            prompt=(*context, text.removeprefix(bos) if context else text),
            add_bos=not context and not (bos and text.startswith(bos)),
            sampling=options.sampling(seed),
            n_predict=options.num_predict if 0 <= options.num_predict <= limit else limit,
            n_keep=options.num_keep,
            stop=options.stop,
            truncate=request.truncate,
            shift=can_shift if request.shift is None else request.shift,
            n_logprobs=request.n_logprobs,
            want_context=request.want_context,
            n_draft_max=options.draft_num_predict,
            drafters=self.drafters,
        )


def _drafters(settings: Settings) -> tuple[core.DrafterKind, ...]:
    if not settings.speculative_decode:
        return ()
    lookup = (core.DrafterKind.LOOKUP,) if settings.prompt_lookup else ()
    return (core.DrafterKind.MODEL, *lookup)


def _spec(pair: core.Pair, options: Options, settings: Settings) -> core.EngineSpec:
    """How the engine loads; what is automatic (context, threads) the scheduler fills in."""
    drafter = pair.drafter
    if options.num_batch < 1:
        raise errors.InvalidOption('option "num_batch" must be at least 1')
    return core.EngineSpec(
        weights=str(pair.target.weights),
        drafter=str(drafter.weights) if drafter else None,
        drafter_name=drafter.name if drafter else "",
        pair_source=drafter.source if drafter else "",
        no_pair_reason=pair.reason or "",
        no_pair_detail=pair.detail,
        n_ctx=options.num_ctx,
        n_slots=settings.num_parallel,
        n_batch=options.num_batch,
        n_gpu_layers=max(options.num_gpu, -1),
        main_gpu=options.main_gpu,
        n_threads=options.num_thread,
        use_mmap=options.use_mmap,
        flash_attention=settings.flash_attention,
        kv_cache_type=settings.kv_cache_type,
        acceptance_threshold=settings.acceptance_threshold,
        trace_dir=str(settings.trace_dir or ""),
    )


async def _fitted(call: _Call, lease: Lease) -> str:
    """The prompt; of a chat too long for the context, without the fewest oldest turns that do it.

    The last turn and every system turn stay: where they alone are too long, the engine decides.
    """
    text = await asyncio.to_thread(call.render)
    most = len(call.droppable)
    if most == 0 or await _fits(text, lease):
        return text
    least = 1
    while least < most:
        middle = (least + most) // 2
        if await _fits(await asyncio.to_thread(_render_without, call, middle), lease):
            most = middle
        else:
            least = middle + 1
    return await asyncio.to_thread(_render_without, call, least)


def _render_without(call: _Call, n_dropped: int) -> str:
    """Many templates insist that a user begins: then one turn more is left out."""
    try:
        return call.render(n_dropped)
    except errors.InvalidRequest:
        if n_dropped >= len(call.droppable):
            raise
        return _render_without(call, n_dropped + 1)


async def _fits(text: str, lease: Lease) -> bool:
    # No text has more tokens than bytes, but for BOS and a leading space: spare the round trip.
    if len(text.encode()) + 2 <= lease.facts.n_ctx:
        return True
    return len(await lease.tokenize(text, add_bos=True)) <= lease.facts.n_ctx


def _of_pair(stats: core.SpeculationStats, pair: core.Pair) -> core.SpeculationStats:
    """The same, in the words of this request's pair.

    Two models over the same weights share an engine, and the engine knows only the first one's.
    """
    if pair.drafter is None:
        return replace(stats, reason=pair.reason or "", detail=pair.detail)
    if stats.drafter is None or stats.pair_source == core.BUILTIN:
        return stats
    return replace(stats, drafter=pair.drafter.name, pair_source=pair.drafter.source)


def _delta(token: core.Token, parser: ReasoningParser | None) -> core.Delta | None:
    """None while the parser holds back what may be part of a tag."""
    delta = core.Delta(content=token.text) if parser is None else parser.feed(token.text)
    if token.logprobs:
        delta = replace(delta, logprobs=token.logprobs)
    return None if delta == core.Delta() else delta


_ERRORS: Mapping[core.FailureKind, type[errors.SpecdError]] = {
    core.FailureKind.INVALID: errors.InvalidRequest,
    core.FailureKind.ENGINE: errors.EngineError,
    core.FailureKind.CRASHED: errors.EngineCrashed,
    core.FailureKind.SHUTDOWN: errors.ShuttingDown,
}


def _error(failed: core.Failed) -> errors.SpecdError:
    if failed.kind is core.FailureKind.CONTEXT_LENGTH:
        return errors.ContextLengthExceeded(failed.n_prompt, failed.n_ctx)
    return _ERRORS[failed.kind](failed.message)


def _log(model: core.ModelRef, done: core.Done) -> None:
    usage, speculation = done.usage, done.speculation
    rate = usage.n_generated / usage.generate_ns * 1e9 if usage.generate_ns else 0.0
    log.info(
        "%s: %d prompt tokens (%d cached), %d tokens, %.1f tokens/s,"
        " drafted %d, accepted %.0f %%, speculation %s",
        model.name,
        usage.n_prompt,
        usage.n_cached,
        usage.n_generated,
        rate,
        speculation.draft_n,
        speculation.acceptance_rate * 100,
        speculation.state,
    )
