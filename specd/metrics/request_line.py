"""The log line that is written at the end of each request.

It holds names, numbers and the kind of an error; no text of prompts, answers or errors, no keys.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from specd.metrics.record import RequestRecord

log = logging.getLogger("specd.requests")

Value = str | int | float

#: Characters of an unknown path in the log; a client may send a path of any length.
_MAX_PATH: Final = 128

#: The fields of a line, in order, with their meaning.
FIELDS: Final[Mapping[str, str]] = {
    "request_id": "Id of the request, as in the answer's `X-Request-Id`.",
    "dialect": "`ollama`, `openai`, `anthropic`, or `outside` for `/health`, `/ready` and"
    " `/metrics`.",
    "method": "GET, POST, ...",
    "route": "Pattern that matched the path.",
    "path": f"First {_MAX_PATH} characters of the path, without the query, if no route matched.",
    "status": "HTTP status of the answer; 499 if the client left before it.",
    "client": "IP address of the client.",
    "key": "Identifier of the API key if keys are set; it changes at each start.",
    "model": "Model that served the request, by its name in the store.",
    "drafter": "Drafter of the answer.",
    "texts": "Number of embedded texts.",
    "prompt_tokens": "Tokens of the whole prompt, once a slot has taken the request.",
    "cached_tokens": "Tokens of the prompt that were found in the cache.",
    "generated_tokens": "Tokens of the answer so far.",
    "drafted": "Drafted tokens. Like all fields about drafting, unknown for an answer that was cut"
    " short.",
    "accepted": "Drafted tokens that were accepted.",
    "acceptance": "accepted ÷ drafted.",
    "speculation": "`active`, `parked` or `off` at the end.",
    "reason": "Why the drafter is parked, drafted nothing, or is missing.",
    "gain": "Time of plain passes for the same tokens ÷ time of the answer's steps, without steps"
    " that also read a prompt. The plain passes are recent ones with as many parallel answers;"
    " `plain_tokens_per_second` is measured at the load with one answer.",
    "tokens_per_s": "Tokens per second, from the first token of the answer to the last.",
    "queue_ms": "Time until a slot took the request, or until its end if none did, without the"
    " load.",
    "load_ms": "Time of the wait that the model's load took.",
    "ttft_ms": "Time from the request to the first token.",
    "finish": "`stop`, `length`, `abort` (the client left) or `error`. Requests without an answer"
    " text, such as a pull, only have `abort`.",
    "total_ms": "Time from the request to its end.",
    "error": "Kind of the error, not its text.",
}
#: Paths that monitoring asks every few seconds: their lines are logged at debug level.
POLL_PATHS: Final = frozenset({"/health", "/v1/health", "/ready", "/metrics"})


#: Errors answered with 500 or 501, as in Ollama, although the client is at fault.
_CLIENT_ERRORS: Final = frozenset({"EmbeddingsUnsupported"})


def log_request(record: RequestRecord) -> None:
    """Log a request: as warning for a server error, at debug level for monitoring paths."""
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
    """Return the fields of FIELDS that are known and apply to the request."""
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
    """Return the fields of a request that did not ask for generated text."""
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
    """Quote a value that contains blanks, quotes, `=` or unprintable characters, on one line."""
    if text.isascii() and text.isprintable() and not set(text) & set(' "='):
        return text
    return json.dumps(text)
