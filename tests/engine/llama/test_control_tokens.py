"""Control tokens of a real vocabulary in real answers, and thinking before a real grammar."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
from gguf import GGUFReader, TokenType

from specd.core import Grammar, GrammarKind, SpeculationMode, StopReason
from specd.engine.detokenizer import split_at_control_tokens
from tests.engine.llama.conftest import BATCH_INVARIANT, DRAFTER, TARGET, Engine, load

#: Tokens that the demo pair often says, here as control tokens.
CONTROLS = ("(", ":", "self", ",")
DRAFTED = {"n_draft_max": 5, "mode": SpeculationMode.FIXED}
PROMPT = "def read_file"
#: Of which some answer has each of the signs, however this build rounds.
OPENINGS = (PROMPT, "class Node", "import os\n\ndef main", "def test_equal", "    def close")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}


def with_controls(path: Path, copy: Path) -> Path:
    """Copy the model and turn a few of its tokens into control tokens."""
    shutil.copyfile(path, copy)
    reader = GGUFReader(copy, "r+")
    tokens, kinds = (reader.fields[f"tokenizer.ggml.{x}"] for x in ("tokens", "token_type"))
    for text, kind in zip(tokens.data, kinds.data, strict=True):
        if bytes(tokens.parts[text]).decode() in CONTROLS:
            kinds.parts[kind][0] = TokenType.CONTROL
    reader.data.flush()
    return copy


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("controls")
    target = with_controls(TARGET, folder / "target.gguf")
    return load(target, with_controls(DRAFTER, folder / "drafter.gguf"), **BATCH_INVARIANT)


def test_a_vocabulary_spells_its_control_tokens(engine: Engine) -> None:
    vocabulary = engine.loaded.vocabulary
    for text in CONTROLS:
        before, token = split_at_control_tokens(f"x{text}", vocabulary)
        assert before == "x"
        assert isinstance(token, int)
        assert vocabulary.piece(token) == b""
        assert vocabulary.spelling(token) == text.encode()
    assert split_at_control_tokens("[TOOL_CALLS]", vocabulary) == ["[TOOL_CALLS]"]
    plain = vocabulary.tokenize(" return", add_bos=False)
    assert b"".join(map(vocabulary.spelling, plain)) == b" return"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_control_tokens_are_visible_with_any_drafter(engine: Engine, temperature: float) -> None:
    vocabulary, n_accepted, n_shorter = engine.loaded.vocabulary, 0, 0
    for seed in range(6):
        asked = {"seed": seed, "temperature": temperature, "n_predict": 60, "want_context": True}
        whole, done = engine.answer(PROMPT, n_draft_max=0, visible=CONTROLS, **asked)
        said = done.context[done.usage.n_prompt :]
        assert whole == b"".join(map(vocabulary.spelling, said)).decode()
        drafted, done = engine.answer(PROMPT, visible=CONTROLS, **DRAFTED, **asked)
        assert drafted == whole
        n_accepted += done.speculation.draft_n_accepted
        hidden, done = engine.answer(PROMPT, **DRAFTED, **asked)
        assert done.context[done.usage.n_prompt :] == said
        assert hidden == b"".join(map(vocabulary.piece, said)).decode()
        n_shorter += len(hidden) < len(whole)
    assert n_accepted > 50
    assert n_shorter > 0  # what a seed draws depends on the build


@pytest.mark.parametrize("stop", ["(", "self, f", "):"])
def test_a_stop_string_is_found_in_visible_control_tokens(engine: Engine, stop: str) -> None:
    asked = {"visible": CONTROLS, "n_predict": 80, "temperature": 0.0}
    whole, _ = engine.answer(PROMPT, **asked)
    assert stop in whole
    for drafting in ({"n_draft_max": 0}, DRAFTED):
        text, done = engine.answer(PROMPT, stop=(stop,), **asked, **drafting)
        assert done.reason is StopReason.STOP
        assert text == whole.partition(stop)[0]


@pytest.mark.contract("format.thinking")
@pytest.mark.parametrize("closing", ["(", ",", "\n", '"""'])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_thinking_is_free_and_the_answer_follows_its_grammar(
    engine: Engine, closing: str, temperature: float
) -> None:
    vocabulary = engine.loaded.vocabulary
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA), thinking=("", closing))
    (tag,) = split_at_control_tokens(closing, vocabulary)
    n_closed = 0
    for seed, prompt in enumerate(OPENINGS):
        asked = {"seed": seed, "temperature": temperature, "n_predict": 120, "visible": CONTROLS}
        free, _ = engine.answer(prompt, n_draft_max=0, **asked)
        plain, done = engine.answer(
            prompt, n_draft_max=0, grammar=grammar, want_context=True, **asked
        )
        assert engine.answer(prompt, grammar=grammar, **DRAFTED, **asked)[0] == plain
        if isinstance(tag, str):
            thought, closed, answer = plain.partition(tag)
        else:
            # Other tokens may hold the same sign, and close nothing.
            said = list(done.context[done.usage.n_prompt :])
            at = said.index(tag) if tag in said else len(said)
            thought = b"".join(map(vocabulary.spelling, said[:at])).decode()
            closed, answer = plain[len(thought) :][: len(closing)], plain[len(thought) + 1 :]
        begun = thought + closed
        # As free as without a grammar, but for an end before there is an answer.
        assert free.startswith(begun) or begun.startswith(free)
        if closed:
            n_closed += 1
            assert done.reason is StopReason.STOP
            jsonschema.validate(json.loads(answer), SCHEMA)
        else:
            assert done.reason is StopReason.LENGTH
    assert n_closed > 0


def test_an_answer_without_thinking_follows_the_grammar(engine: Engine) -> None:
    grammar = Grammar(kind=GrammarKind.JSON, thinking=("<think>", "</think>"))
    text, _ = engine.answer("value = ", grammar=grammar, n_predict=40, visible=CONTROLS)
    assert re.match(r"\{|<think>", text)
