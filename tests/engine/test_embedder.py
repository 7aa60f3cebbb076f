"""The loop of an embedding engine, over a fake whose vector of a text is its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import Embedding, Failed, FailureKind, TokenId
from specd.engine.backend import DecodeFailed
from specd.engine.embedder import Embedder, SpecialTokens
from specd.errors import ContextLengthExceeded, InvalidRequest
from specd.ipc.messages import Embedded, Finished, ToDaemon

CLS, SEP, BAD = 1, 2, 3


class FakeEncoder:
    """Its limits are as strict as llama.cpp's; a text with BAD in it fails its whole pass."""

    def __init__(self, n_ctx: int = 16, n_shared: int = 10, n_texts: int = 3) -> None:
        self.n_ctx, self.n_shared, self.n_texts = n_ctx, n_shared, n_texts
        self.passes: list[int] = []

    def encode(self, texts: Sequence[Sequence[TokenId]]) -> list[tuple[float, ...]]:
        assert 0 < len(texts) <= self.n_texts
        assert all(texts)
        n_tokens = sum(map(len, texts))
        assert n_tokens <= (self.n_shared if len(texts) > 1 else self.n_ctx)
        if any(BAD in text for text in texts):
            raise DecodeFailed("bad")
        self.passes.append(len(texts))
        return [tuple(map(float, text)) for text in texts]


class FakeTokenizer:
    """Each letter is a token; the vocabulary adds `before` and `behind` around the text."""

    def __init__(self, before: Sequence[int] = (CLS,), behind: Sequence[int] = (SEP,)) -> None:
        self._before, self._behind = before, behind

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        assert add_bos
        inside = [BAD if letter == "!" else ord(letter) for letter in text]
        return [*self._before, *inside, *self._behind]


class EmbedderHarness:
    def __init__(
        self, encoder: FakeEncoder | None = None, tokenizer: FakeTokenizer | None = None
    ) -> None:
        self.encoder = encoder or FakeEncoder()
        self.said: list[ToDaemon] = []
        self.embedder = Embedder(self.encoder, tokenizer or FakeTokenizer(), self.said.append)

    def submit(self, *texts: str, truncate: bool = True) -> None:
        for request_id, text in enumerate(texts):
            self.embedder.submit(request_id, text, truncate=truncate)

    def run(self) -> dict[int, Embedding | Failed]:
        """Return how each request ended."""
        while self.embedder.is_busy:
            self.embedder.step()
        ends: dict[int, Embedding | Failed] = {}
        for message in self.said:
            assert isinstance(message, Embedded | Finished)
            assert message.request_id not in ends
            end = message.embedding if isinstance(message, Embedded) else message.event
            assert isinstance(end, Embedding | Failed)
            ends[message.request_id] = end
        return ends


def vector_of(text: str) -> Embedding:
    tokens = (CLS, *map(ord, text), SEP)
    return Embedding(vector=tuple(map(float, tokens)), n_tokens=len(tokens))


def test_short_texts_share_passes_in_order() -> None:
    house = EmbedderHarness()
    texts = ["a", "b", "cd", "efghij", "k", "", "l", "m", "n"]
    house.submit(*texts)
    assert house.run() == {i: vector_of(text) for i, text in enumerate(texts)}
    assert house.encoder.passes == [3, 1, 3, 2]


@given(st.lists(st.text("abc!", max_size=20), max_size=30), st.integers(1, 5), st.integers(3, 16))
def test_each_text_is_answered_once_and_only_invalid_ones_fail(
    texts: list[str], n_texts: int, n_shared: int
) -> None:
    house = EmbedderHarness(FakeEncoder(n_texts=n_texts, n_shared=n_shared))
    house.submit(*texts)
    ends = house.run()
    assert sorted(ends) == list(range(len(texts)))
    for request_id, text in enumerate(texts):
        end, kept = ends[request_id], text[: house.encoder.n_ctx - 2]
        if "!" in kept:
            assert isinstance(end, Failed)
            assert end.kind is FailureKind.ENGINE
        else:
            assert end == vector_of(kept)


@pytest.mark.contract("embed.truncate")
def test_a_long_text_is_truncated_before_its_closing_token() -> None:
    house = EmbedderHarness()
    house.submit("a" * 100)
    assert house.run() == {0: vector_of("a" * 14)}


@pytest.mark.contract("embed.truncate-off")
def test_a_long_text_fails_without_truncate() -> None:
    house = EmbedderHarness()
    house.submit("a" * 100, "b", truncate=False)
    failed, fine = house.run().values()
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.n_prompt, failed.n_ctx) == (FailureKind.CONTEXT_LENGTH, 102, 16)
    assert fine == vector_of("b")


@pytest.mark.contract("embed.truncate", "embed.truncate-off")
def test_a_request_may_limit_its_context() -> None:
    house = EmbedderHarness()
    for request_id, (n_ctx, truncate) in enumerate([(5, True), (99, True), (5, False)]):
        house.embedder.submit(request_id, "a" * 30, truncate=truncate, n_ctx=n_ctx)
    ends = house.run()
    short, whole, failed = (ends[request_id] for request_id in range(3))
    assert (short, whole) == (vector_of("a" * 3), vector_of("a" * 14))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.n_prompt, failed.n_ctx) == (FailureKind.CONTEXT_LENGTH, 32, 5)


def test_a_text_without_tokens_is_invalid() -> None:
    house = EmbedderHarness(tokenizer=FakeTokenizer(before=(), behind=()))
    house.submit("")
    [failed] = house.run().values()
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.INVALID


def test_a_cancelled_text_gets_no_message() -> None:
    house = EmbedderHarness()
    house.submit("a", "b", "c")
    house.embedder.cancel(1)
    house.embedder.cancel(7)
    assert house.run() == {0: vector_of("a"), 2: vector_of("c")}
    assert house.encoder.passes == [2]


def test_every_waiting_text_fails_when_the_engine_ends() -> None:
    house = EmbedderHarness()
    house.submit("a", "b")
    house.embedder.fail_all(FailureKind.SHUTDOWN, "bye")
    failed = Failed(kind=FailureKind.SHUTDOWN, message="bye")
    assert house.run() == {0: failed, 1: failed}


def test_a_step_without_texts_returns_false() -> None:
    house = EmbedderHarness()
    house.embedder.step()
    assert house.said == []


@pytest.mark.parametrize(
    "before, behind, n_closing",
    [((), (), 0), ((CLS,), (), 0), ((), (SEP,), 1), ((CLS,), (SEP,), 1), ((CLS,), (SEP, SEP), 2)],
)
def test_special_tokens_before_and_after_a_text_are_counted(
    before: tuple[int, ...], behind: tuple[int, ...], n_closing: int
) -> None:
    frame = SpecialTokens.of(FakeTokenizer(before, behind))
    assert frame == SpecialTokens(len(before) + len(behind), n_closing)
    tokens = [*before, *range(10, 30), *behind]
    cut = frame.fit(tokens, 12, truncate=True)
    assert len(cut) == 12
    assert cut[: len(before)] == list(before)
    assert cut[12 - n_closing :] == list(behind)


@pytest.mark.contract("embed.nothing-left")
def test_a_context_for_special_tokens_only_is_too_short() -> None:
    frame = SpecialTokens(n_special=2, n_closing=1)
    with pytest.raises(InvalidRequest, match="input after truncation exceeds maximum context"):
        frame.fit([CLS, 10, SEP], 2, truncate=True)
    with pytest.raises(ContextLengthExceeded):
        frame.fit([CLS, 10, SEP], 2, truncate=False)


@pytest.mark.contract("embed.nothing-left")
@pytest.mark.parametrize("n_ctx", [2, 1, 0, -7])
def test_a_context_without_room_for_a_token_of_the_text_is_refused(n_ctx: int) -> None:
    house = EmbedderHarness()
    house.embedder.submit(1, "abc", truncate=True, n_ctx=n_ctx)
    house.embedder.submit(2, "abc", truncate=False, n_ctx=n_ctx)
    [cut, whole] = [said.event for said in house.said if isinstance(said, Finished)]
    assert isinstance(cut, Failed)
    assert isinstance(whole, Failed)
    assert (cut.kind, whole.kind) == (FailureKind.INVALID, FailureKind.CONTEXT_LENGTH)
    assert cut.message == "input after truncation exceeds maximum context length"
