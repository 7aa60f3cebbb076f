"""The loop of an embedding engine: texts become vectors, several short texts in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from specd.core import Embedding, Failed, FailureKind, TokenId
from specd.engine import prompt_tokens
from specd.engine.backend import DecodeFailed
from specd.errors import ContextLengthExceeded, InvalidRequest
from specd.ipc.messages import Embedded, Finished, ToDaemon


class Encoder(Protocol):
    """A model that turns texts into vectors, with no state between calls."""

    @property
    def n_ctx(self) -> int:
        """Most tokens of one text."""
        ...

    @property
    def n_shared(self) -> int:
        """Most tokens of all texts together in one call with several texts."""
        ...

    @property
    def n_texts(self) -> int:
        """Most texts in one call."""
        ...

    def encode(self, texts: Sequence[Sequence[TokenId]]) -> list[tuple[float, ...]]:
        """Return one vector per text, pooled and not normalised.  Raises DecodeFailed."""
        ...


class Tokenizer(Protocol):
    """The tokenizer of an embedding model."""

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        """Return the tokens.  add_bos: add the vocabulary's special tokens around the text."""
        ...


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens that a vocabulary adds to a text.

    n_special: their number.  n_closing: how many of them come after the text.
    """

    n_special: int
    n_closing: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialTokens:
        special, letter = (tokenizer.tokenize(text, add_bos=True) for text in ("", "a"))
        n_closing = 0
        while n_closing < len(special) and letter[-1 - n_closing] == special[-1 - n_closing]:
            n_closing += 1
        return cls(len(special), n_closing)

    def fit(self, tokens: list[TokenId], n_ctx: int, *, truncate: bool) -> list[TokenId]:
        """Return the tokens cut to n_ctx, with the closing special tokens kept.

        Raises ContextLengthExceeded if truncate is False and the text is too long, InvalidRequest
        if no token of the text is left.
        """
        if not tokens:
            raise InvalidRequest("the input is empty and the model adds no special tokens")
        if len(tokens) <= n_ctx:
            return tokens
        if not truncate:
            raise ContextLengthExceeded(len(tokens), n_ctx)
        if n_ctx <= self.n_special:
            raise InvalidRequest("input after truncation exceeds maximum context length")
        return tokens[: n_ctx - self.n_closing] + tokens[len(tokens) - self.n_closing :]


@dataclass(frozen=True, slots=True)
class _QueuedText:
    request_id: int
    tokens: list[TokenId]


class Embedder:
    """The queue of texts and the passes over them, first come, first served.

    Each text ends in one Embedded or one Failed.
    """

    def __init__(
        self, encoder: Encoder, tokenizer: Tokenizer, emit: Callable[[ToDaemon], None]
    ) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._emit = emit
        self._special_tokens = SpecialTokens.of(tokenizer)
        self._waiting: dict[int, _QueuedText] = {}  # by request id, oldest first

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def submit(
        self, request_id: int, text: str, *, truncate: bool, n_ctx: int | None = None
    ) -> None:
        """Queue a text; answer an invalid one at once.

        n_ctx: most tokens of the text; None: the whole context.
        """
        n_most = self._encoder.n_ctx if n_ctx is None else min(n_ctx, self._encoder.n_ctx)
        try:
            prompt_tokens.check_size([text])
            tokens = self._tokenizer.tokenize(text, add_bos=True)
            tokens = self._special_tokens.fit(tokens, max(n_most, 0), truncate=truncate)
        except ContextLengthExceeded as error:
            kind = FailureKind.CONTEXT_LENGTH
            self._fail(request_id, kind, str(error), error.n_prompt, error.n_ctx)
        except InvalidRequest as error:
            self._fail(request_id, FailureKind.INVALID, str(error))
        else:
            self._waiting[request_id] = _QueuedText(request_id, tokens)

    def cancel(self, request_id: int) -> None:
        """Drop a text without a further message."""
        self._waiting.pop(request_id, None)

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """End every request with the same failure."""
        waiting, self._waiting = self._waiting, {}
        for request_id in waiting:
            self._fail(request_id, kind, message)

    def step(self) -> bool:
        """Run one pass over the oldest texts that fit together; return whether there were any."""
        group = self._next_group()
        if not group:
            return False
        try:
            self._encode(group)
        except DecodeFailed:
            # One text, or all together, may be too much: try each alone.
            for waiting in group:
                self._encode_alone(waiting)
        return True

    def _next_group(self) -> list[_QueuedText]:
        group: list[_QueuedText] = []
        n_tokens = 0
        for waiting in islice(self._waiting.values(), self._encoder.n_texts):
            n_tokens += len(waiting.tokens)
            if group and n_tokens > self._encoder.n_shared:
                break
            group.append(waiting)
        for waiting in group:
            del self._waiting[waiting.request_id]
        return group

    def _encode(self, group: Sequence[_QueuedText]) -> None:
        vectors = self._encoder.encode([waiting.tokens for waiting in group])
        for waiting, vector in zip(group, vectors, strict=True):
            embedding = Embedding(vector=vector, n_tokens=len(waiting.tokens))
            self._emit(Embedded(waiting.request_id, embedding))

    def _encode_alone(self, waiting: _QueuedText) -> None:
        try:
            self._encode([waiting])
        except DecodeFailed as error:
            self._fail(waiting.request_id, FailureKind.ENGINE, str(error))

    def _fail(
        self, request_id: int, kind: FailureKind, message: str, n_prompt: int = 0, n_ctx: int = 0
    ) -> None:
        failed = Failed(kind=kind, message=message, n_prompt=n_prompt, n_ctx=n_ctx)
        self._emit(Finished(request_id, failed))
