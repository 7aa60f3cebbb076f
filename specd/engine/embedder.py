"""The loop of an embedding engine: texts become vectors, several short texts in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    #: Most tokens of one text.
    n_ctx: int
    #: Most tokens of all texts together in one call with several texts.
    n_shared: int
    #: Most texts in one call.
    n_texts: int

    def encode(self, texts: Sequence[Sequence[TokenId]]) -> list[tuple[float, ...]]:
        """Return one vector per text, pooled and not normalised.  Raises DecodeFailed."""
        ...


class Tokenizer(Protocol):
    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        """Return the tokens.  add_bos: add the vocabulary's special tokens around the text."""
        ...


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Numbers of the special tokens that a vocabulary adds to a text, and of those after it."""

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

        Raises InvalidRequest if nothing is left, or truncate is False and the text too long.
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


class Embedder:
    """The queue of texts, first come, first served; each ends in one Embedded or one Failed."""

    def __init__(
        self, encoder: Encoder, tokenizer: Tokenizer, emit: Callable[[ToDaemon], None]
    ) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._emit = emit
        self._special_tokens = SpecialTokens.of(tokenizer)
        #: Tokens by request id, oldest first.
        self._waiting: dict[int, list[TokenId]] = {}

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
        except InvalidRequest as error:
            self._emit(Finished(request_id, prompt_tokens.failed(error)))
        else:
            self._waiting[request_id] = tokens

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
        group = self._take_group()
        if not group:
            return False
        try:
            self._encode(group)
        except DecodeFailed:
            # One text, or all together, may be too much: try each alone.
            for request_id, tokens in group.items():
                try:
                    self._encode({request_id: tokens})
                except DecodeFailed as error:
                    self._fail(request_id, FailureKind.ENGINE, str(error))
        return True

    def _take_group(self) -> dict[int, list[TokenId]]:
        group: dict[int, list[TokenId]] = {}
        n_tokens = 0
        for request_id, tokens in islice(self._waiting.items(), self._encoder.n_texts):
            n_tokens += len(tokens)
            if group and n_tokens > self._encoder.n_shared:
                break
            group[request_id] = tokens
        for request_id in group:
            del self._waiting[request_id]
        return group

    def _encode(self, group: Mapping[int, list[TokenId]]) -> None:
        vectors = self._encoder.encode([*group.values()])
        for (request_id, tokens), vector in zip(group.items(), vectors, strict=True):
            self._emit(Embedded(request_id, Embedding(vector=vector, n_tokens=len(tokens))))

    def _fail(self, request_id: int, kind: FailureKind, message: str) -> None:
        self._emit(Finished(request_id, Failed(kind=kind, message=message)))
