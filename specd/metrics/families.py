"""Every metric there is, declared once: what `/metrics` shows and docs/metrics.md is made of.

Where vLLM counts the same, the name is vLLM's behind our prefix, so that who knows the one reads
the other.  All others are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "specd:"

# Bounds in seconds of a wait, of one token, and of a load; and in tokens of a text.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric.  buckets: upper bounds, of a histogram.  vllm: whether the name is vLLM's.

    at_scrape: read when somebody asks, not counted as it happens.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    vllm: bool = False
    at_scrape: bool = False

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which samples of it are found."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.full_name}_total",)
            case Kind.GAUGE:
                return (self.full_name,)
            case Kind.HISTOGRAM:
                return tuple(f"{self.full_name}_{part}" for part in ("bucket", "count", "sum"))


_MODEL: Final = ("model_name",)
_PAIR: Final = ("model_name", "drafter")


def _counter(
    name: str,
    text: str,
    labels: tuple[str, ...] = (),
    *,
    vllm: bool = False,
    at_scrape: bool = False,
) -> Family:
    return Family(
        name=name, kind=Kind.COUNTER, help=text, labels=labels, vllm=vllm, at_scrape=at_scrape
    )


def _gauge(name: str, text: str, labels: tuple[str, ...] = (), *, vllm: bool = False) -> Family:
    return Family(name=name, kind=Kind.GAUGE, help=text, labels=labels, vllm=vllm, at_scrape=True)


def _histogram(
    name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...], *, vllm: bool = True
) -> Family:
    return Family(
        name=name, kind=Kind.HISTOGRAM, help=text, labels=labels, buckets=buckets, vllm=vllm
    )


# --------------------------------------------------------------------------- answers, by model

RUNNING = _gauge(
    "num_requests_running", "Requests that an engine is at work on.", _MODEL, vllm=True
)
WAITING = _gauge(
    "num_requests_waiting",
    "Requests that wait for their model, or for a slot of it.",
    _MODEL,
    vllm=True,
)
PROMPT_TOKENS = _counter(
    "prompt_tokens", "Tokens of prompts, those from the cache with them.", _MODEL, vllm=True
)
GENERATION_TOKENS = _counter(
    "generation_tokens", "Tokens of answers, of those under way too.", _MODEL, vllm=True
)
PREFIX_QUERIES = _counter(
    "prefix_cache_queries", "Tokens of prompts that were looked for in a slot.", _MODEL, vllm=True
)
PREFIX_HITS = _counter(
    "prefix_cache_hits", "Tokens of prompts that a slot still had.", _MODEL, vllm=True
)
FINISHED = _counter(
    "request_success",
    "Answers that ended: `stop`, `length`, or `abort` where the client left.",
    (*_MODEL, "finished_reason"),
    vllm=True,
)
TTFT = _histogram(
    "time_to_first_token_seconds",
    "From the request to the first token: queue, load and prompt.",
    _WAIT,
    _MODEL,
)
INTER_TOKEN = _histogram(
    "inter_token_latency_seconds", "From one step's tokens to the next one's.", _TOKEN, _MODEL
)
PER_TOKEN = _histogram(
    "request_time_per_output_token_seconds",
    "Of an answer, the mean time of a token after the first.",
    _TOKEN,
    _MODEL,
)
E2E = _histogram(
    "e2e_request_latency_seconds", "From the request to the end of its answer.", _WAIT, _MODEL
)
QUEUE_TIME = _histogram(
    "request_queue_time_seconds",
    "Until a slot had the request, or to its end where none did, but for the load.",
    _WAIT,
    _MODEL,
)
PREFILL_TIME = _histogram(
    "request_prefill_time_seconds", "Reading of the prompt, as the engine says.", _WAIT, _MODEL
)
DECODE_TIME = _histogram(
    "request_decode_time_seconds", "Writing of the answer, as the engine says.", _WAIT, _MODEL
)
INFERENCE_TIME = _histogram("request_inference_time_seconds", "Both together.", _WAIT, _MODEL)
REQUEST_PROMPT = _histogram("request_prompt_tokens", "Tokens of a prompt.", _TEXT, _MODEL)
REQUEST_GENERATED = _histogram("request_generation_tokens", "Tokens of an answer.", _TEXT, _MODEL)
EMBEDDED_TEXTS = _counter("embedded_texts", "Texts that became vectors.", _MODEL)

# --------------------------------------------------------------------------- speculation, by pair

DRAFTS = _counter("spec_decode_num_drafts", "Drafts that were verified.", _PAIR, vllm=True)
DRAFTED = _counter("spec_decode_num_draft_tokens", "Tokens that were drafted.", _PAIR, vllm=True)
ACCEPTED = _counter(
    "spec_decode_num_accepted_tokens", "Drafted tokens that were right.", _PAIR, vllm=True
)
ACCEPTED_PER_POS = _counter(
    "spec_decode_num_accepted_tokens_per_pos",
    "The same by their place in the draft, from 0.",
    (*_PAIR, "position"),
    vllm=True,
)
DRAFTED_PER_POS = _counter(
    "spec_decode_num_draft_tokens_per_pos",
    "Drafted tokens by their place in the draft, from 0.",
    (*_PAIR, "position"),
)
LOOKED_UP = _counter(
    "spec_decode_num_lookup_tokens", "Of the drafted tokens those of prompt lookup.", _PAIR
)
LOOKED_UP_ACCEPTED = _counter(
    "spec_decode_num_accepted_lookup_tokens",
    "Of the accepted tokens those of prompt lookup.",
    _PAIR,
)
STEPS = _counter(
    "decode_steps",
    "Steps of answers, by whether a draft was verified in them (`on`) or not (`off`).",
    (*_PAIR, "speculation"),
)
SPECULATION = _counter(
    "speculation_requests",
    "Answers by how speculation stood at their end (`active`, `parked`, `off`) and why, in"
    " the words of docs/api/ollama.md.",
    (*_PAIR, "state", "reason"),
)
GAIN = _gauge(
    "speculation_gain_ratio",
    "Of the answers since the load, as each line's `gain`: by plain passes as measured of late, not"
    " by `plain_tokens_per_second`.",
    _PAIR,
)
THRESHOLD = _gauge(
    "acceptance_threshold",
    "Share of drafted tokens that must be accepted: where drafting breaks even at the costs"
    " measured here, or the number in `SPECD_ACCEPTANCE_THRESHOLD`.",
    _PAIR,
)
PLAIN_SPEED = _gauge(
    "plain_tokens_per_second",
    "Plain decoding of one answer alone, as measured at the load.",
    _MODEL,
)

# --------------------------------------------------------------------------- models in memory

RESIDENT = _gauge("model_resident", "1 for each model that is loaded.", _PAIR)
RESIDENT_BYTES = _gauge(
    "model_memory_bytes",
    "What a loaded model takes of a device, by `part`: `target` or `drafter`.",
    (*_MODEL, "part", "device"),
)
SLOTS = _gauge("model_slots", "Requests that the model can answer at the same time.", _MODEL)
CONTEXT = _gauge("model_context_tokens", "Context of one slot.", _MODEL)
LOADS = _counter(
    "model_loads", "Loads by how they went: `ok`, or the kind of the error.", (*_MODEL, "result")
)
LOAD_TIME = _histogram("model_load_seconds", "Loads that went well.", _LOAD, _MODEL, vllm=False)
EVICTIONS = _counter(
    "model_evictions",
    "Models that were told to leave: `expired` (or unloaded), `make_room`, `unwanted` (nobody waits"
    " for the load any more) or `shutdown`.",
    (*_MODEL, "reason"),
)
CRASHES = _counter(
    "engine_crashes",
    "Engines that died by themselves, or were ended for they made no step any more.",
    _MODEL,
)
STUCK = _gauge(
    "engines_stuck", "Engines that should have ended and cannot be: what they hold is not free."
)
ENGINE_RSS = _gauge("engine_resident_memory_bytes", "Main memory of an engine's process.", _MODEL)
ENGINE_FDS = _gauge("engine_open_fds", "Open files and sockets of an engine's process.", _MODEL)
ENGINE_CPU = _counter(
    "engine_cpu_seconds",
    "Processor time of an engine's process since its load.",
    _MODEL,
    at_scrape=True,
)
DEVICE_FREE = _gauge(
    "device_memory_free_bytes", "Free memory of a GPU, where its driver says so.", ("device", "id")
)
DEVICE_TOTAL = _gauge("device_memory_bytes", "Memory of a GPU.", ("device", "id"))

# --------------------------------------------------------------------------- the API

HTTP = _counter(
    "http_requests", "Requests that were answered, of every kind.", ("dialect", "route", "status")
)
HTTP_OPEN = _gauge("http_requests_in_flight", "Requests that are not answered yet.")
ERRORS = _counter("request_errors", "Requests that ended in an error.", ("dialect", "kind"))
REFUSALS = _counter("queue_refusals", "Requests that were turned away by a full queue (503).")
PULLED = _counter("pulled_bytes", "What was downloaded from registries.")
PUSHED = _counter("pushed_bytes", "What was uploaded to registries.")
READY = _gauge("ready", "1 while requests are accepted, as `/ready` says.")
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
#: What `prometheus_client` says of the daemon's own process, on Linux: name → meaning.
PROCESS: Final = {
    "process_cpu_seconds_total": "Processor time of the daemon.",
    "process_resident_memory_bytes": "Main memory of the daemon.",
    "process_virtual_memory_bytes": "Its address space.",
    "process_open_fds": "Its open files and sockets.",
    "process_max_fds": "How many it may open.",
    "process_start_time_seconds": "When it started, in Unix time.",
}
