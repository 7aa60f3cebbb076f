"""Visible control tokens: the same text and logprobs with any drafter."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core import SpeculationMode, StopReason, TokenId, TokenLogprob
from specd.engine.detokenizer import split_at_control_tokens, visible_bytes
from specd.ipc.messages import Tokens
from tests.engine.grammar.vocabulary import MarkedVocabulary
from tests.engine.test_loop import Engine, answer
from tests.fakes.backend import FakeVocabulary
from tests.fast import computes_long

MARKED = MarkedVocabulary()
THINK, CHANNEL = MARKED.ids["<|think|>"], MARKED.ids["<|channel|>"]
MESSAGE = MARKED.ids["<|message|>"]
CALL, ARGS = 12, 20


class Controls(FakeVocabulary):
    """Two of the letters are control tokens."""

    spellings = {CALL: b"[CALL]", ARGS: b"[ARGS]"}  # noqa: RUF012

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        known = {spelling.decode(): [token] for token, spelling in self.spellings.items()}
        return known.get(text) or super().tokenize(text, add_bos=add_bos)

    def piece(self, token: TokenId) -> bytes:
        return b"" if token in self.spellings else super().piece(token)

    def spelling(self, token: TokenId) -> bytes:
        return self.spellings.get(token) or super().piece(token)


class Visible(Engine):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.loop.vocabulary = Controls()

    def logprobs(self) -> list[TokenLogprob]:
        return [x for m in self.said if isinstance(m, Tokens) for x in m.token.logprobs]


def test_a_tag_is_split_into_control_tokens_and_text() -> None:
    assert split_at_control_tokens("<think>", MARKED) == ["<think>"]
    assert split_at_control_tokens("<|think|>", MARKED) == [THINK]
    assert split_at_control_tokens("<|channel|>final<|message|>", MARKED) == [
        CHANNEL,
        "final",
        MESSAGE,
    ]
    assert split_at_control_tokens("a<|channel|><|channel|>b", MARKED) == [
        "a",
        CHANNEL,
        CHANNEL,
        "b",
    ]
    assert split_at_control_tokens("", MARKED) == []


def test_only_requested_control_tokens_have_bytes() -> None:
    say = visible_bytes(["<|channel|>thought", "no token at all"], MARKED)
    assert say(CHANNEL) == b"<|channel|>"
    assert say(THINK) == b""
    assert say(ord("x")) == b"x"


@computes_long
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    agreement=st.sampled_from([0.0001, 0.5, 1.0]),
    n_draft=st.integers(1, 16),
    stop=st.sampled_from([(), ("[CALL]",), ("L]A", "ARGS"), ("S]",)]),
    n_logprobs=st.sampled_from([None, 2]),
)
def test_visible_control_tokens_do_not_depend_on_speculation(
    agreement: float, n_draft: int, **request: Any
) -> None:
    request |= {"visible": ("[CALL]", "[ARGS]"), "n_predict": 80, "want_context": True}
    plain = Visible(agreement=None)
    text, done = answer(plain, n_draft_max=0, **request)
    drafted = Visible(agreement=agreement)
    fixed = {"n_draft_max": n_draft, "mode": SpeculationMode.FIXED}
    drafted_text, drafted_done = answer(drafted, **fixed, **request)
    assert drafted_text == text
    assert drafted_done.context == done.context
    assert drafted.logprobs() == plain.logprobs()
    assert all(stop not in text for stop in request["stop"])
    if not request["stop"]:
        said = done.context[done.usage.n_prompt :]
        raw = b"".join(Controls().spelling(token) for token in said)
        assert text == raw.decode("utf-8", "replace")
        if request["n_logprobs"]:
            assert [bytes(x.bytes) for x in plain.logprobs()] == [
                Controls().spelling(token) for token in said
            ]


def test_other_control_tokens_stay_out_of_the_text() -> None:
    engine = Visible(agreement=None)
    shown, done = answer(engine, visible=("[CALL]",), want_context=True, n_predict=200, seed=3)
    said = done.context[done.usage.n_prompt :]
    assert CALL in said
    assert ARGS in said
    assert shown.count("[CALL]") == said.count(CALL)
    assert "[ARGS]" not in shown
    hidden, _ = answer(Visible(agreement=None), n_predict=200, seed=3)
    assert hidden == shown.replace("[CALL]", "")


def test_a_stop_string_inside_a_control_token_is_found() -> None:
    text, done = answer(
        Visible(agreement=0.5), visible=("[CALL]", "[ARGS]"), stop=("ALL]",), n_predict=200, seed=3
    )
    assert done.reason is StopReason.STOP
    assert text.endswith("[C")
