"""Declarations of all metrics, for `/metrics` and docs/metrics.md.

A metric that vLLM has too is named as in vLLM, behind specd's prefix.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from typing import Final

PREFIX: Final = "specd:"

# Upper bounds of buckets: of waits, tokens and loads in seconds, of texts in tokens.
_WAIT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_TOKEN: Final = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5,
    1, 2.5,
)  # fmt: skip
_LOAD: Final = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_TEXT: Final = (1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    buckets: upper bounds of a histogram.  vllm: whether the name is vLLM's.
    at_scrape: whether the value is read at each scrape, instead of counted as it happens.
    """

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    _: KW_ONLY
    buckets: tuple[float, ...] = ()
    vllm: bool = False
    at_scrape: bool = False

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of its time series."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.full_name}_total",)
            case Kind.GAUGE:
                return (self.full_name,)
            case Kind.HISTOGRAM:
                return tuple(f"{self.full_name}_{part}" for part in ("bucket", "count", "sum"))


_MODEL: Final = ("model_name",)
_PAIR: Final = ("model_name", "drafter")

_counter = partial(Family, Kind.COUNTER)
_gauge = partial(Family, Kind.GAUGE, at_scrape=True)
_histogram = partial(Family, Kind.HISTOGRAM, labels=_MODEL, vllm=True)

# --------------------------------------------------------------------------- answers, by model

RUNNING = _gauge(
    "num_requests_running", "Requests that an engine is processing.", _MODEL, vllm=True
)
WAITING = _gauge(
    "num_requests_waiting",
    "Requests that wait for their model or for one of its slots.",
    _MODEL,
    vllm=True,
)
PROMPT_TOKENS = _counter(
    "prompt_tokens", "Tokens of prompts, including cached ones.", _MODEL, vllm=True
)
GENERATION_TOKENS = _counter(
    "generation_tokens", "Tokens of answers, including running ones.", _MODEL, vllm=True
)
PREFIX_QUERIES = _counter(
    "prefix_cache_queries", "Tokens of prompts looked up in the cache.", _MODEL, vllm=True
)
PREFIX_HITS = _counter(
    "prefix_cache_hits", "Tokens of prompts found in the cache.", _MODEL, vllm=True
)
FINISHED = _counter(
    "request_success",
    "Answers that ended: `stop`, `length`, or `abort` if the client left.",
    (*_MODEL, "finished_reason"),
    vllm=True,
)
TTFT = _histogram(
    "time_to_first_token_seconds",
    "Time from the request to the first token: queue, load and prompt.",
    buckets=_WAIT,
)
INTER_TOKEN = _histogram(
    "inter_token_latency_seconds",
    "Time between the tokens of one step and those of the next.",
    buckets=_TOKEN,
)
PER_TOKEN = _histogram(
    "request_time_per_output_token_seconds",
    "Mean time per token of an answer, without the first token.",
    buckets=_TOKEN,
)
E2E = _histogram(
    "e2e_request_latency_seconds", "Time from the request to the end of its answer.", buckets=_WAIT
)
QUEUE_TIME = _histogram(
    "request_queue_time_seconds",
    "Time until a slot took the request, or until its end if none did, without the load.",
    buckets=_WAIT,
)
PREFILL_TIME = _histogram(
    "request_prefill_time_seconds", "Prefill time of a request in the engine.", buckets=_WAIT
)
DECODE_TIME = _histogram(
    "request_decode_time_seconds", "Decode time of a request in the engine.", buckets=_WAIT
)
INFERENCE_TIME = _histogram(
    "request_inference_time_seconds", "Prefill time plus decode time.", buckets=_WAIT
)
REQUEST_PROMPT = _histogram("request_prompt_tokens", "Tokens per prompt.", buckets=_TEXT)
REQUEST_GENERATED = _histogram("request_generation_tokens", "Tokens per answer.", buckets=_TEXT)
EMBEDDED_TEXTS = _counter("embedded_texts", "Texts that were embedded.", _MODEL)

# --------------------------------------------------------------------------- speculation, by pair

DRAFTS = _counter("spec_decode_num_drafts", "Verified drafts.", _PAIR, vllm=True)
DRAFTED = _counter("spec_decode_num_draft_tokens", "Drafted tokens.", _PAIR, vllm=True)
ACCEPTED = _counter(
    "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", _PAIR, vllm=True
)
ACCEPTED_PER_POS = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    "Accepted tokens by their position in the draft, from 0.",
    (*_PAIR, "position"),
    vllm=True,
)
DRAFTED_PER_POS = _counter(
    "spec_decode_num_draft_tokens_per_pos",
    "Drafted tokens by their position in the draft, from 0.",
    (*_PAIR, "position"),
)
LOOKED_UP = _counter(
    "spec_decode_num_lookup_tokens", "Drafted tokens that came from prompt lookup.", _PAIR
)
LOOKED_UP_ACCEPTED = _counter(
    "spec_decode_num_accepted_lookup_tokens", "Accepted tokens that came from prompt lookup.", _PAIR
)
STEPS = _counter(
    "decode_steps",
    "Decode steps of answers, with (`on`) or without (`off`) a draft to verify.",
    (*_PAIR, "speculation"),
)
SPECULATION = _counter(
    "speculation_requests",
    "Answers by the state of speculation at their end (`active`, `parked`, `off`) and the reason;"
    " docs/api/ollama.md lists them.",
    (*_PAIR, "state", "reason"),
)
GAIN = _gauge(
    "speculation_gain_ratio",
    "Gain of the answers since the load, computed like `gain` of each log line: relative to recent"
    " plain passes, not to `plain_tokens_per_second`.",
    _PAIR,
)
THRESHOLD = _gauge(
    "acceptance_threshold",
    "Share of drafted tokens that must be accepted: the break-even point at the measured costs, or"
    " the value of `SPECD_ACCEPTANCE_THRESHOLD`.",
    _PAIR,
)
PLAIN_SPEED = _gauge(
    "plain_tokens_per_second",
    "Speed of plain decoding with one answer at a time, measured at the load.",
    _MODEL,
)

# --------------------------------------------------------------------------- models in memory

RESIDENT = _gauge("model_resident", "1 for each model that is loaded.", _PAIR)
RESIDENT_BYTES = _gauge(
    "model_memory_bytes",
    "Memory of a loaded model on a device, by `part`: `target` or `drafter`.",
    (*_MODEL, "part", "device"),
)
SLOTS = _gauge("model_slots", "Requests that the model can answer in parallel.", _MODEL)
CONTEXT = _gauge("model_context_tokens", "Context of one slot in tokens.", _MODEL)
LOADS = _counter(
    "model_loads", "Loads by result: `ok`, or the kind of the error.", (*_MODEL, "result")
)
LOAD_TIME = _histogram("model_load_seconds", "Time of successful loads.", buckets=_LOAD, vllm=False)
EVICTIONS = _counter(
    "model_evictions",
    "Models that were unloaded, by reason: `expired` (or on request), `make_room`, `unwanted` (all"
    " requests that waited for the load have left) or `shutdown`.",
    (*_MODEL, "reason"),
)
CRASHES = _counter(
    "engine_crashes", "Engines that crashed, or were killed because they made no progress.", _MODEL
)
STUCK = _gauge("engines_stuck", "Engines that cannot be killed; their memory is still in use.")
ENGINE_RSS = _gauge("engine_resident_memory_bytes", "Main memory of an engine's process.", _MODEL)
ENGINE_FDS = _gauge("engine_open_fds", "Open files and sockets of an engine's process.", _MODEL)
ENGINE_CPU = _counter(
    "engine_cpu_seconds",
    "Processor time of an engine's process since its load.",
    _MODEL,
    at_scrape=True,
)
DEVICE_FREE = _gauge(
    "device_memory_free_bytes", "Free memory of a GPU, if its driver reports it.", ("device", "id")
)
DEVICE_TOTAL = _gauge("device_memory_bytes", "Memory of a GPU.", ("device", "id"))

# --------------------------------------------------------------------------- the API

HTTP = _counter(
    "http_requests", "Answered HTTP requests of every kind.", ("dialect", "route", "status")
)
HTTP_OPEN = _gauge("http_requests_in_flight", "HTTP requests without a complete answer.")
ERRORS = _counter("request_errors", "Requests that ended in an error.", ("dialect", "kind"))
REFUSALS = _counter("queue_refusals", "Requests refused because the queue was full (503).")
PULLED = _counter("pulled_bytes", "Bytes downloaded from registries.")
PUSHED = _counter("pushed_bytes", "Bytes uploaded to registries.")
READY = _gauge("ready", "1 while requests are accepted, like `/ready`.")
BUILD = _gauge(
    "build_info", "Always 1; the versions are its labels.", ("version", "ollama_version", "python")
)

GROUPS: Final[dict[str, tuple[Family, ...]]] = {
    "Answers, by model": (
        RUNNING, WAITING, PROMPT_TOKENS, GENERATION_TOKENS, PREFIX_QUERIES, PREFIX_HITS, FINISHED,
        TTFT, INTER_TOKEN, PER_TOKEN, E2E, QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME,
        REQUEST_PROMPT, REQUEST_GENERATED, EMBEDDED_TEXTS,
    ),
    "Speculation, by pair": (
        DRAFTS, DRAFTED, ACCEPTED, ACCEPTED_PER_POS, DRAFTED_PER_POS, LOOKED_UP, LOOKED_UP_ACCEPTED,
        STEPS, SPECULATION, GAIN, THRESHOLD, PLAIN_SPEED,
    ),
    "Models in memory": (
        RESIDENT, RESIDENT_BYTES, SLOTS, CONTEXT, LOADS, LOAD_TIME, EVICTIONS, CRASHES, STUCK,
        ENGINE_RSS, ENGINE_FDS, ENGINE_CPU, DEVICE_FREE, DEVICE_TOTAL,
    ),
    "The daemon": (
        HTTP, HTTP_OPEN, ERRORS, REFUSALS, PULLED, PUSHED, READY, BUILD,
    ),
}  # fmt: skip
FAMILIES: Final = tuple(family for group in GROUPS.values() for family in group)
#: Metrics of `prometheus_client` about the daemon's own process, on Linux: name → meaning.
PROCESS: Final = {
    "process_cpu_seconds_total": "Processor time of the daemon.",
    "process_resident_memory_bytes": "Main memory of the daemon.",
    "process_virtual_memory_bytes": "Address space of the daemon.",
    "process_open_fds": "Open files and sockets of the daemon.",
    "process_max_fds": "Limit of its open files and sockets.",
    "process_start_time_seconds": "Start of the daemon in Unix time.",
}
