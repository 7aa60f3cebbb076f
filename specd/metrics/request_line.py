"""The line that each request leaves in the log, at its end, whatever that was.

No words of prompts, answers or errors, and no keys: names, numbers, and the kind of an error.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from specd.metrics.record import RequestRecord

log = logging.getLogger("specd.requests")

Value = str | int | float

#: Of a path that nobody has, a client may make up any amount.
_MAX_PATH: Final = 128

#: Every field that a line may have, in their order.
FIELDS: Final[Mapping[str, str]] = {
    "request_id": "As the answer's `X-Request-Id` says it.",
    "dialect": "`ollama`, `openai`, `anthropic`, or `outside` of what watchers ask.",
    "method": "GET, POST, ...",
    "route": "The pattern that the path fitted.",
    "path": f"The path itself, without its query, where no route fitted; its first {_MAX_PATH}"
    " characters.",
    "status": "Of the answer; 499 where the client left before there was one.",
    "client": "Its address.",
    "key": "What stands for its API key until the next start, where there are keys.",
    "model": "Which served it; of the store, never what a client made up.",
    "drafter": "Which drafted.",
    "texts": "How many became vectors.",
    "prompt_tokens": "Of the whole prompt, once a slot has it.",
    "cached_tokens": "Of these what a slot still had.",
    "generated_tokens": "Of the answer, as far as it came.",
    "drafted": "Tokens. Like all else of drafting, not known of an answer that was cut short.",
    "accepted": "Tokens of these.",
    "acceptance": "accepted ÷ drafted.",
    "speculation": "`active`, `parked` or `off` at the end.",
    "reason": "Why the drafter rests, drafted nothing, or is not there.",
    "gain": "The time that plain passes would have taken for its tokens ÷ that of its own steps."
    " Plain ones as of late, with as many answers beside it: not by `plain_tokens_per_second`,"
    " which is of one answer alone, at the load; and without steps in which a prompt was read.",
    "tokens_per_s": "Of the answer, from its first token to its last.",
    "queue_ms": "Until a slot had it, or to its end where none did, but for the load.",
    "load_ms": "Of the wait what the model's load took.",
    "ttft_ms": "From the request to the first token.",
    "finish": "`stop`, `length`, `abort` (the client left) or `error`; of what is no answer"
    " (a pull, say) `abort` alone.",
    "total_ms": "From the request to its end.",
    "error": "The kind of the error, not its words.",
}
#: Asked every few seconds by whoever watches: they would bury all else.
POLL_PATHS: Final = frozenset({"/health", "/v1/health", "/ready", "/metrics"})


#: Answered by 500 or 501, as Ollama does, though the request alone was wrong.
_CLIENT_ERRORS: Final = frozenset({"EmbeddingsUnsupported"})


def log_request(record: RequestRecord) -> None:
    """A warning where we are to blame, at debug level of those who only look."""
    level = logging.INFO
    if record.route in POLL_PATHS:
        level = logging.DEBUG
    elif _is_server_error(record):
        level = logging.WARNING
    if log.isEnabledFor(level):
        fields = request_fields(record)
        log.log(level, "request %s", logfmt(fields), extra={"fields": fields})


def _is_server_error(record: RequestRecord) -> bool:
    if record.error in _CLIENT_ERRORS:
        return False
    return record.status >= 500 or (record.status < 400 and record.finish == "error")


def request_fields(record: RequestRecord) -> dict[str, Value]:
    """FIELDS; what is not known, or does not apply, is left out."""
    known: dict[str, Value | None] = {
        "request_id": record.id,
        "dialect": record.dialect,
        "method": record.method,
        "route": record.route,
        "path": record.path[:_MAX_PATH],
        "status": record.status,
        "client": record.client,
        "key": record.key,
        "model": record.model,
        **(_answer(record) if record.is_generation else _work(record)),
        "total_ms": _ms(record.total_s),
        "error": record.error,
    }
    return {name: value for name, value in known.items() if value not in {None, ""}}


def _work(record: RequestRecord) -> dict[str, Value | None]:
    """Of a request that wanted no text."""
    fields: dict[str, Value | None] = {}
    if record.n_texts:
        fields |= {"texts": record.n_texts, "prompt_tokens": record.n_text_tokens}
    if record.waited_s:
        fields |= {"queue_ms": _ms(record.queue_s), "load_ms": _ms(record.loading_s)}
    return fields | {"finish": record.finish}


def _answer(record: RequestRecord) -> dict[str, Value | None]:
    usage, done = record.usage, record.done
    ttft_s = record.ttft_s
    fields: dict[str, Value | None] = {"generated_tokens": usage.n_generated}
    if done is not None or record.begun is not None:
        fields = {"prompt_tokens": usage.n_prompt, "cached_tokens": usage.n_cached} | fields
    if done is not None:
        stats = done.speculation
        rate = usage.n_generated / usage.generate_ns * 1e9 if usage.generate_ns else None
        fields = {
            "drafter": stats.drafter,
            **fields,
            "drafted": stats.draft_n,
            "accepted": stats.draft_n_accepted,
            "acceptance": round(stats.acceptance_rate, 3) if stats.draft_n else None,
            "speculation": str(stats.state),
            "reason": stats.reason,
            "gain": round(stats.speedup, 3) if stats.speedup is not None else None,
            "tokens_per_s": round(rate, 1) if rate is not None else None,
        }
    return fields | {
        "queue_ms": _ms(record.queue_s),
        "load_ms": _ms(record.loading_s),
        "ttft_ms": _ms(ttft_s) if ttft_s is not None else None,
        "finish": record.finish,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def logfmt(fields: dict[str, Value]) -> str:
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _quoted(text: str) -> str:
    """As it is where that can be read back; else in quotes, on one line whatever is in it."""
    if text.isascii() and text.isprintable() and not set(text) & set(' "='):
        return text
    return json.dumps(text)
