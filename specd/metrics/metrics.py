"""Counts requests, loads and transfers; most counters change once per request, not per token."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

import specd
from specd import core, errors
from specd.metrics import families
from specd.metrics.families import FAMILIES, Family, Kind
from specd.metrics.record import RequestRecord
from specd.metrics.state import BoundedLabels, SampleSet, State, collect_samples

_OPENMETRICS: Final = "application/openmetrics-text"


class SchedulerObserver:
    """An observer of the scheduler's events; this base class ignores them."""

    def loaded(self, model: str, took_s: float) -> None: ...
    def load_failed(self, model: str, error: errors.SpecdError) -> None: ...
    def left(self, model: str, reason: str) -> None: ...
    def engine_crashed(self, model: str) -> None: ...
    def refused(self) -> None: ...


class Metrics(SchedulerObserver):
    """The metrics of the daemon.

    clock: seconds.  Use it in the event loop's thread, except for the function that `scrape`
    returns.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, names: BoundedLabels | None = None
    ) -> None:
        # They would add an unused series to each metric.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._names = names or BoundedLabels()
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        counted = [family for family in FAMILIES if not family.at_scrape]
        self._counters = {
            f: Counter(f.full_name, f.help, f.labels, registry=self._registry)
            for f in counted
            if f.kind is Kind.COUNTER
        }
        self._histograms = {
            f: Histogram(f.full_name, f.help, f.labels, registry=self._registry, buckets=f.buckets)
            for f in counted
            if f.kind is Kind.HISTOGRAM
        }
        self._open: set[RequestRecord] = set()

    # ----------------------------------------------------------------------- requests

    def begin(
        self, *, request_id: str, method: str, dialect: str, route: str, path: str, client: str
    ) -> RequestRecord:
        """Return the record of a new request.  The caller must pass it to `end`."""
        record = RequestRecord(
            id=request_id,
            method=method,
            dialect=dialect,
            route=route,
            path=path,
            client=client,
            clock=self._clock,
            started=self._clock(),
            gaps=self._gap_observer,
        )
        self._open.add(record)
        return record

    def end(self, record: RequestRecord) -> None:
        record.ended = self._clock()
        self._open.discard(record)
        route = record.route or "unmatched"
        self._add(families.HTTP, 1, record.dialect, route, str(record.status))
        if record.error:
            self._add(families.ERRORS, 1, record.dialect, record.error)
        if not record.model:
            return
        model = self._names.model(record.model)
        if record.n_texts:
            self._add(families.EMBEDDED_TEXTS, record.n_texts, model)
            self._add(families.PROMPT_TOKENS, record.n_text_tokens, model)
        if record.is_generation:
            self._count_answer(record, model)

    def _gap_observer(self, model: str) -> Callable[[float], None]:
        return self._histograms[families.INTER_TOKEN].labels(self._names.model(model)).observe

    def _count_answer(self, record: RequestRecord, model: str) -> None:
        usage = record.usage
        self._report_tokens(record, max(usage.n_generated, record.n_tokens))
        self._observe(families.E2E, record.total_s, model)
        self._observe(families.QUEUE_TIME, record.queue_s, model)
        if record.ttft_s is not None:
            self._observe(families.TTFT, record.ttft_s, model)
        if record.finish != "error":
            self._add(families.FINISHED, 1, model, record.finish)
        if record.token_s is not None:
            self._observe(families.PER_TOKEN, record.token_s, model)
        if record.done is not None or record.begun is not None:
            self._add(families.PROMPT_TOKENS, usage.n_prompt, model)
            if record.done is None or record.done.speculation.reason != core.NoPair.UPSTREAM:
                self._add(families.PREFIX_QUERIES, usage.n_prompt, model)
                self._add(families.PREFIX_HITS, usage.n_cached, model)
        if record.done is None:
            return
        prefill_s, decode_s = usage.prompt_ns / 1e9, usage.generate_ns / 1e9
        self._observe(families.PREFILL_TIME, prefill_s, model)
        self._observe(families.DECODE_TIME, decode_s, model)
        self._observe(families.INFERENCE_TIME, prefill_s + decode_s, model)
        self._observe(families.REQUEST_PROMPT, usage.n_prompt, model)
        self._observe(families.REQUEST_GENERATED, usage.n_generated, model)
        self._count_speculation(record.model, record.done.speculation)

    def _count_speculation(self, model: str, stats: core.SpeculationStats) -> None:
        pair = self._names.pair(model, stats.drafter)
        self._add(families.SPECULATION, 1, *pair, str(stats.state), stats.reason)
        self._add(families.STEPS, stats.rounds, *pair, "on")
        self._add(families.STEPS, max(stats.n_steps - stats.rounds, 0), *pair, "off")
        if stats.drafter is None:
            return
        self._add(families.DRAFTS, stats.rounds, *pair)
        self._add(families.DRAFTED, stats.draft_n, *pair)
        self._add(families.ACCEPTED, stats.draft_n_accepted, *pair)
        self._add(families.LOOKED_UP, stats.lookup_n, *pair)
        self._add(families.LOOKED_UP_ACCEPTED, stats.lookup_n_accepted, *pair)
        for position, n in enumerate(stats.drafted_per_depth):
            self._add(families.DRAFTED_PER_POS, n, *pair, str(position))
        for position, n in enumerate(stats.accepted_per_depth):
            self._add(families.ACCEPTED_PER_POS, n, *pair, str(position))

    def _report_tokens(self, record: RequestRecord, n_tokens: int) -> None:
        if n_tokens > record.n_reported:
            n_new, record.n_reported = n_tokens - record.n_reported, n_tokens
            self._add(families.GENERATION_TOKENS, n_new, self._names.model(record.model))

    # ----------------------------------------------------------------------- models

    def loaded(self, model: str, took_s: float) -> None:
        name = self._names.model(model)
        self._add(families.LOADS, 1, name, "ok")
        self._observe(families.LOAD_TIME, took_s, name)

    def load_failed(self, model: str, error: errors.SpecdError) -> None:
        self._add(families.LOADS, 1, self._names.model(model), type(error).__name__)

    def left(self, model: str, reason: str) -> None:
        self._add(families.EVICTIONS, 1, self._names.model(model), reason)

    def engine_crashed(self, model: str) -> None:
        self._add(families.CRASHES, 1, self._names.model(model))

    def refused(self) -> None:
        self._add(families.REFUSALS, 1)

    def pulled(self, n_bytes: int) -> None:
        self._add(families.PULLED, n_bytes)

    def pushed(self, n_bytes: int) -> None:
        self._add(families.PUSHED, n_bytes)

    # ----------------------------------------------------------------------- scrapes

    def scrape(self, state: State, accept: str) -> Callable[[], tuple[bytes, str]]:
        """Return a function that renders the text and its content type.

        Run it in a thread, because the text may be long.
        accept: the request's Accept header, which may ask for OpenMetrics.
        """
        for record in self._open:
            if record.is_generation:
                self._report_tokens(record, record.n_tokens)
        now = collect_samples(state, self._names)
        now.add(families.HTTP_OPEN, len(self._open))
        versions = specd.__version__, specd.OLLAMA_API_VERSION, platform.python_version()
        now.add(families.BUILD, 1, *versions)
        encode, content_type = _encoder(accept)
        return lambda: (encode(_MergedCollector(self._registry, now)), content_type)

    def _add(self, family: Family, n: float, *labels: str) -> None:
        counter = self._counters[family]
        (counter.labels(*labels) if labels else counter).inc(n)

    def _observe(self, family: Family, value: float, *labels: str) -> None:
        self._histograms[family].labels(*labels).observe(value)


class _MergedCollector(Collector):
    """The counted metrics and those read at the scrape, as one collector."""

    def __init__(self, counted: CollectorRegistry, read: SampleSet) -> None:
        self._counted = counted
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from self._counted.collect()
        yield from self._read.metrics()


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder and the content type for an Accept header, as the library chooses.

    The library's OpenMetrics encoder would replace `:` in names by `_`, so escaping is off.
    """
    encode, content_type = choose_encoder(accept)
    if not content_type.startswith(_OPENMETRICS):
        return encode, content_type
    encode = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)
    return encode, f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
