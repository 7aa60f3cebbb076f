"""Define the requests of the hour: real prompts of several lengths, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.soak.dialects import Dialect
from specd.bench.workload import Form, load_workload

#: A target with its drafter, which stays loaded; the others are loaded, unloaded and killed.
PAIR: Final = "pair"
OTHER: Final = "other"
VECTORS: Final = "vectors"

_STREAMED: Final = frozenset(
    {Dialect.OLLAMA, Dialect.OPENAI, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.ANTHROPIC}
)
_TOKENS: Final = (8, 16, 24, 48)
_TEMPERATURES: Final = (0.0, 0.8, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakRequest:
    """One request.

    fields: None is a GET.  model: whose engine it needs, "" for none.
    is_seeded: whether its answer is always the same.  expected: the correct status.
    """

    dialect: Dialect
    path: str
    fields: Mapping[str, Any] | None = None
    raw: bytes = b""
    model: str = ""
    is_seeded: bool = True
    expected: int = 200

    @property
    def can_stream(self) -> bool:
        return self.dialect in _STREAMED and self.expected == 200 and not self.raw

    @property
    def key(self) -> str:
        """Return a key that streamed and plain requests with the same content share."""
        return f"{self.path} {json.dumps(self.fields, sort_keys=True)} {self.raw!r}"

    def body(self, *, streamed: bool) -> bytes | None:
        if self.raw:
            return self.raw
        if self.fields is None:
            return None
        sent = dict(self.fields)
        if self.dialect in _STREAMED:
            sent["stream"] = streamed
        return json.dumps(sent).encode()


# --------------------------------------------------------------------------- each client's


def editor() -> tuple[SoakRequest, ...]:
    """Return requests to continue files."""
    texts = _prompts("code_completion")
    return tuple(
        _generate(PAIR, text, n, raw=True)
        if n % 3
        else SoakRequest(
            dialect=Dialect.COMPLETIONS,
            path="/v1/completions",
            fields={"model": PAIR, "prompt": text, "max_tokens": _tokens(n), "seed": n},
            model=PAIR,
        )
        for n, text in enumerate(texts)
    )


def chat_window() -> tuple[SoakRequest, ...]:
    """Return chats with the pair and the other model, some without a seed."""
    texts = [*_prompts("chat"), *_prompts("qa"), *_prompts("creative")]
    seeded = [_chat(PAIR if n % 3 else OTHER, text, n) for n, text in enumerate(texts)]
    free = [
        replace(
            _chat(PAIR, text, n),
            fields={**(_chat(PAIR, text, n).fields or {}), "options": {"temperature": 1.2}},
            is_seeded=False,
        )
        for n, text in enumerate(texts[:4])
    ]
    long = {"num_predict": 100, "temperature": 1.0, "top_k": 0}
    return (*seeded, *(_with_options(ask, long) for ask in free))


def openai_agent() -> tuple[SoakRequest, ...]:
    """Return growing conversations, some with answers in JSON."""
    texts = [*_prompts("code_description"), *_prompts("summary")]
    return tuple(
        _openai_chat(texts, n) if n % 4 else _responses(text, n) for n, text in enumerate(texts)
    )


def anthropic_agent() -> tuple[SoakRequest, ...]:
    """Return long prompts under a system prompt, after a request for their token count."""
    texts = [*_prompts("edit"), *_prompts("summary")]
    return tuple(_anthropic(texts, n) for n in range(len(texts))) + tuple(
        SoakRequest(
            dialect=Dialect.OBJECT,
            path="/v1/messages/count_tokens",
            fields={"model": PAIR, "messages": [{"role": "user", "content": text}]},
            model=PAIR,
        )
        for text in texts[:3]
    )


def search_index() -> tuple[SoakRequest, ...]:
    """Return documents to embed, single and in batches."""
    texts = [text[:300] for text in _prompts("summary")]
    one = [_vectors("/api/embed", input=text) for text in texts]
    many = [_vectors("/api/embed", input=texts[: n + 2]) for n in range(len(texts) - 2)]
    old = [_vectors("/api/embeddings", prompt=text) for text in texts[:3]]
    theirs = [_vectors("/v1/embeddings", input=texts[n : n + 3]) for n in range(3)]
    return (*one, *many, *old, *theirs)


def automation() -> tuple[SoakRequest, ...]:
    """Return requests for a home's state as JSON, with and without a schema."""
    schema = {
        "type": "object",
        "properties": {
            "room": {"type": "string", "maxLength": 12},
            "light": {"type": "boolean"},
            "level": {"type": "integer"},
        },
        "required": ["room", "light", "level"],
    }
    texts = _prompts("json")
    return tuple(
        replace(
            ask := _generate(PAIR, text, n),
            fields={**(ask.fields or {}), "format": schema if n % 2 else "json"},
        )
        for n, text in enumerate(texts)
    )


def dashboard() -> tuple[SoakRequest, ...]:
    """Return requests for the lists of local and loaded models."""
    often = ("/api/tags", "/api/ps")
    paths = (*often, *often, "/api/version", "/v1/models", f"/v1/models/{PAIR}")
    gets = tuple(SoakRequest(dialect=Dialect.OBJECT, path=path, is_seeded=False) for path in paths)
    root = SoakRequest(dialect=Dialect.TEXT, path="/", is_seeded=False)
    shows = tuple(
        SoakRequest(
            dialect=Dialect.OBJECT, path="/api/show", fields={"model": model}, is_seeded=False
        )
        for model in (PAIR, OTHER, VECTORS)
    )
    return (*gets, root, *shows)


def administrator() -> tuple[SoakRequest, ...]:
    """Return loads, unloads, and contexts that need another engine."""
    text = _prompts("qa")[0]
    wide = _with_options(_generate(OTHER, text, 3), {"num_ctx": 8192})
    short = _with_options(_generate(PAIR, text, 4), {"num_ctx": 1024})
    return (
        *(_load(model) for model in (PAIR, OTHER, OTHER, VECTORS)),
        *(_load(model, keep_alive=0) for model in (OTHER, OTHER, VECTORS)),
        _load(OTHER, keep_alive="2s"),
        wide,
        wide,
        short,
    )


def careless() -> tuple[SoakRequest, ...]:
    """Return requests that are refused with the same text at any time."""
    return tuple(_refused())


def _refused() -> Iterator[SoakRequest]:
    unknown = {"model": "nobody-has-this", "messages": [{"role": "user", "content": "a"}]}
    user = [{"role": "user", "content": "a"}]
    for dialect, path in (
        (Dialect.OLLAMA, "/api/chat"),
        (Dialect.OPENAI, "/v1/chat/completions"),
        (Dialect.ANTHROPIC, "/v1/messages"),
    ):
        yield SoakRequest(
            dialect=dialect, path=path, fields={**unknown, "max_tokens": 9}, expected=404
        )
        yield SoakRequest(dialect=dialect, path=path, raw=b'{"model": "', expected=400)
        wrong = {"model": 7, "messages": user, "max_tokens": 9}
        yield SoakRequest(dialect=dialect, path=path, fields=wrong, expected=400)
    for fields in (
        {"model": PAIR, "prompt": "a", "context": [10**6]},
        {"model": VECTORS, "prompt": "a"},
        {"model": PAIR, "prompt": 7},
    ):
        path = "/api/generate"
        yield SoakRequest(dialect=Dialect.OLLAMA, path=path, fields=fields, expected=400)
    number = {"model": VECTORS, "input": 7}
    yield SoakRequest(dialect=Dialect.VECTORS, path="/api/embed", fields=number, expected=400)
    yield SoakRequest(
        dialect=Dialect.OBJECT, path="/api/show", fields={"model": "gone"}, expected=404
    )
    yield SoakRequest(dialect=Dialect.TEXT, path="/api/nothing-here", expected=404)


# --------------------------------------------------------------------------- shapes


def _prompts(name: str) -> list[str]:
    workload = load_workload(name)
    assert workload.form in Form
    return [prompt.text for prompt in workload.prompts]


def _tokens(n: int) -> int:
    return _TOKENS[n % len(_TOKENS)]


def _options(n: int) -> dict[str, object]:
    """Return the options.  n: the request's number among its kind, which determines them."""
    return {
        "seed": n,
        "temperature": _TEMPERATURES[n % len(_TEMPERATURES)],
        "num_predict": _tokens(n),
    }


def _generate(model: str, text: str, n: int, *, raw: bool = False) -> SoakRequest:
    fields: dict[str, Any] = {"model": model, "prompt": text, "options": _options(n)}
    if raw:
        fields["raw"] = True
    return SoakRequest(dialect=Dialect.OLLAMA, path="/api/generate", fields=fields, model=model)


def _chat(model: str, text: str, n: int) -> SoakRequest:
    messages = [{"role": "user", "content": text}]
    fields = {"model": model, "messages": messages, "options": _options(n)}
    return SoakRequest(dialect=Dialect.OLLAMA, path="/api/chat", fields=fields, model=model)


def _with_options(ask: SoakRequest, options: Mapping[str, object]) -> SoakRequest:
    fields = dict(ask.fields or {})
    fields["options"] = {**fields.get("options", {}), **options}
    return replace(ask, fields=fields)


def _load(model: str, **fields: object) -> SoakRequest:
    if model == VECTORS:
        return _vectors("/api/embed", input="a", **fields)
    return SoakRequest(
        dialect=Dialect.OLLAMA,
        path="/api/generate",
        fields={"model": model, **fields},
        model=model,
    )


def _conversation(texts: list[str], n: int) -> list[dict[str, str]]:
    """Return a question, or one after an earlier question and answer."""
    asked = {"role": "user", "content": texts[n]}
    if n % 2 == 0:
        return [asked]
    before = {"role": "user", "content": texts[n - 1]}
    return [before, {"role": "assistant", "content": "It depends."}, asked]


def _openai_chat(texts: list[str], n: int) -> SoakRequest:
    fields: dict[str, Any] = {
        "model": PAIR,
        "messages": _conversation(texts, n),
        "max_tokens": _tokens(n),
        "seed": n,
        "temperature": _TEMPERATURES[n % len(_TEMPERATURES)],
    }
    if n % 5 == 0:
        fields["response_format"] = {"type": "json_object"}
    return SoakRequest(
        dialect=Dialect.OPENAI, path="/v1/chat/completions", fields=fields, model=PAIR
    )


def _responses(text: str, n: int) -> SoakRequest:
    """Return a request without a seed, which decodes greedily."""
    fields = {"model": PAIR, "input": text, "max_output_tokens": _tokens(n), "temperature": 0}
    return SoakRequest(dialect=Dialect.RESPONSES, path="/v1/responses", fields=fields, model=PAIR)


def _anthropic(texts: list[str], n: int) -> SoakRequest:
    """Return a request without a seed, which decodes greedily."""
    model = OTHER if n % 4 == 3 else PAIR
    fields = {
        "model": model,
        "system": "You are a careful reader. Answer briefly.",
        "messages": _conversation(texts, n),
        "max_tokens": _tokens(n),
        "temperature": 0,
    }
    return SoakRequest(dialect=Dialect.ANTHROPIC, path="/v1/messages", fields=fields, model=model)


def _vectors(path: str, **fields: object) -> SoakRequest:
    return SoakRequest(
        dialect=Dialect.VECTORS, path=path, fields={"model": VECTORS, **fields}, model=VECTORS
    )
