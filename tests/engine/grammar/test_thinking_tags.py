"""Thinking before an answer is free; the answer after it follows the grammar."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.compiler import GrammarCompiler
from specd.engine.grammar.state import GrammarState
from specd.engine.grammar.translation import compile_matcher
from tests.engine.grammar.vocabulary import ENDS, MARKS, MarkedVocabulary

VOCABULARY = MarkedVocabulary()
COMPILER = GrammarCompiler(VOCABULARY)
N_VOCAB = VOCABULARY.n_vocab

TEXT_TAGS = ("<think>", "</think>")
CONTROL_TAGS = ("<|think|>", "<|/think|>")
MIXED_TAGS = ("<|channel|>thought", "<|message|>")
HARMONY = ("", "<|channel|>final<|message|>")


def begin(thinking: tuple[str, str] | None, text: str = "yes|no") -> GrammarState:
    grammar = Grammar(kind=GrammarKind.REGEX, text=text, thinking=thinking)
    start = compile_matcher(grammar, COMPILER.table.tokenizer, COMPILER.thinking_tags(grammar))
    return GrammarState(start, COMPILER.table)


def reads(state: GrammarState, answer: str) -> bool:
    """Whether the answer, byte by byte and mark by mark, is one."""
    for token in VOCABULARY.tokenize(answer, add_bos=False):
        if not state.allows(token):
            return False
        state.accept(token)
    return state.allows(ENDS[0])


@pytest.mark.parametrize(
    "tags,answer",
    [
        (TEXT_TAGS, "yes"),
        (TEXT_TAGS, "<think>hm, {no} <think> </thin\n</think>\n\nyes"),
        (TEXT_TAGS, "<think></think>no"),
        (("", "</think>"), "so\n</think>no"),
        (("", "</think>"), "</think>no"),
        (CONTROL_TAGS, "no"),
        (CONTROL_TAGS, "<|think|>é 😀<|/think|> no"),
        (CONTROL_TAGS, "<|think|><|/think|>no"),
        (("", "<|/think|>"), "yes, I think so<|/think|>yes"),
        (("", "</think>"), "<|channel|>a<|end|>b</think>yes"),
        (("", "final<|message|>"), "<|channel|>a<|message|>b<|channel|>final<|message|>yes"),
        (CONTROL_TAGS, "<|think|><|channel|>a<|channel|><|/think|>yes"),
        (MIXED_TAGS, "<|channel|>thought\nhm<|message|>yes"),
        (HARMONY, "<|channel|>final<|message|>yes"),
        (
            HARMONY,
            "<|channel|>analysis<|message|>final?<|end|><|start|>assistant<|channel|>final<|message|>no",
        ),
        (HARMONY, "<|channel|>finally<|message|><|start|><|channel|>final<|message|>no"),
        (HARMONY, "<|message|>hm<|end|><|channel|>final<|message|>no"),
        (HARMONY, "hm<|channel|>final<|message|>no"),
    ],
)
def test_thinking_may_have_any_text(tags: tuple[str, str], answer: str) -> None:
    assert reads(begin(tags), answer)


@pytest.mark.parametrize(
    "tags,answer",
    [
        (TEXT_TAGS, "maybe"),
        (TEXT_TAGS, "<think>yes"),
        (TEXT_TAGS, "<think>hm</think>maybe"),
        (TEXT_TAGS, "<think>hm</think>yes</think>yes"),
        (("", "</think>"), "yes"),
        (CONTROL_TAGS, "<|think|>yes"),
        (TEXT_TAGS, "<think>a<|start|></think><|start|>yes"),
        (("", "</think>"), "a</think>b<|end|></think>yes"),
        (CONTROL_TAGS, "<|think|>a<|/think|>b<|/think|>yes"),
        (CONTROL_TAGS, "<|/think|>yes"),
        (HARMONY, "yes"),
        (HARMONY, "<|channel|>final<|message|>maybe"),
        (HARMONY, "<|channel|>analysis<|message|>yes"),
        (HARMONY, "<|channel|>final<|message|>yes<|end|>"),
        (None, "<think></think>yes"),
    ],
)
def test_the_answer_after_thinking_follows_the_grammar(
    tags: tuple[str, str] | None, answer: str
) -> None:
    assert not reads(begin(tags), answer)


def test_a_closing_tag_may_share_a_token_with_the_answer() -> None:
    """Many vocabularies have such a token, for example `>{"`."""
    joint = next(token for token in range(N_VOCAB) if VOCABULARY.piece(token) == b'", "')
    for closing, text in (('",', ' "ab'), ('", "', "ab"), ('"', ', "ab')):
        state = begin(("", closing), text)
        for token in (ord("x"), joint):
            assert state.allows(token)
            state.accept(token)
        assert state.allows(ord("a"))
        assert not state.allows(ord("m"))


STARTS = st.sampled_from(
    [
        (TEXT_TAGS, "<think>a "),
        (TEXT_TAGS, "<think>a</think>"),
        (CONTROL_TAGS, "<|think|>a"),
        (CONTROL_TAGS, ""),
        (HARMONY, "<|channel|>"),
        (HARMONY, "<|channel|>final"),
        (HARMONY, "<|channel|>analysis<|message|>fin"),
        (HARMONY, "<|channel|>final<|message|>"),
    ]
)


@given(STARTS, st.integers(0, 2**32), st.integers(0, 25), st.integers(0, 25))
def test_masks_single_checks_and_rollbacks_agree(
    start: tuple[tuple[str, str], str], seed: int, n_steps: int, n_back: int
) -> None:
    (tags, prefix), random = start, Random(seed)
    state = begin(tags)
    said = VOCABULARY.tokenize(prefix, add_bos=False)
    for token in said:
        assert state.allows(token)
        state.accept(token)
    while len(said) < n_steps and not state.is_finished:
        said.append(int(random.choice(np.flatnonzero(state.mask()))))
        state.accept(said[-1])
    n_back = min(n_back, len(said))
    state.rollback(n_back)
    fresh = begin(tags)
    for token in said[: len(said) - n_back]:
        fresh.accept(token)
    if not fresh.is_finished:
        mask = fresh.mask()
        assert (mask == state.mask()).all()
        assert mask.tolist() == [state.allows(token) for token in range(N_VOCAB)]
        assert not state._matcher.is_error()  # noqa: SLF001 - nothing else shows its error


def test_the_compiler_takes_tags_from_the_request() -> None:
    plain = Grammar(kind=GrammarKind.JSON)
    thought = Grammar(kind=GrammarKind.JSON, thinking=CONTROL_TAGS)
    opened = Grammar(kind=GrammarKind.JSON_SCHEMA, text="{}", thinking=("", "</think>"))
    mark = VOCABULARY.ids[MARKS[0]]
    assert not COMPILER.compile(plain).allows(mark)
    assert COMPILER.compile(thought).allows(mark)
    assert COMPILER.compile(thought).allows(ord("{"))
    assert COMPILER.compile(opened).allows(ord("x"))
