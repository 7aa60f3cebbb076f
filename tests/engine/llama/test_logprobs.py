"""Logprobs under speculation: those of the target's own rows, for drafted tokens as for others."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from specd.core import Done, Grammar, GrammarKind, SpeculationMode, TokenLogprob
from specd.ipc.messages import Tokens
from tests.engine.llama.conftest import DRAFTER, TARGET, Engine, Recorder, load

N_TOP = 3
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 4, "maxLength": 30},
        "lines": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 4},
    },
    "required": ["path", "lines"],
    "additionalProperties": False,
}
GRAMMARS = {
    "free": None,
    "schema": Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA)),
}


def answer(engine: Engine, **fields: object) -> tuple[str, Done, list[TokenLogprob]]:
    text, done = engine.answer("def read_file(path", n_logprobs=N_TOP, want_context=True, **fields)
    said = [entry for m in engine.said if isinstance(m, Tokens) for entry in m.token.logprobs]
    return text, done, said


def numbers(entries: list[TokenLogprob]) -> Iterator[float]:
    for entry in entries:
        yield entry.logprob
        yield from (top.logprob for top in entry.top)


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_drafted_tokens_have_the_logprobs_of_plain_decoding(
    invariant_demo: Engine, grammar: Grammar | None, temperature: float
) -> None:
    asked = {"grammar": grammar, "temperature": temperature, "seed": 4, "n_predict": 80}
    plain_text, plain_done, plain = answer(invariant_demo, n_draft_max=0, **asked)
    drafted_text, drafted_done, drafted = answer(
        invariant_demo, n_draft_max=6, mode=SpeculationMode.FIXED, **asked
    )
    assert drafted_text == plain_text
    assert drafted_done.context == plain_done.context
    assert drafted_done.speculation.draft_n_accepted > 5
    assert [entry.token for entry in drafted] == [entry.token for entry in plain]
    assert [[top.token for top in e.top] for e in drafted] == [
        [top.token for top in e.top] for e in plain
    ]
    assert list(numbers(drafted)) == pytest.approx(list(numbers(plain)), abs=1e-3)
    assert all(entry.logprob < 0 for entry in drafted), "nothing is certain"


@pytest.mark.parametrize("grammar", GRAMMARS.values(), ids=GRAMMARS)
def test_logprobs_come_from_the_row_before_filters_and_grammar(grammar: Grammar | None) -> None:
    engine = load(TARGET, DRAFTER)
    recorder = Recorder(engine.loaded.target)
    engine.loop.target = recorder
    _, done, entries = answer(
        engine, grammar=grammar, n_draft_max=6, mode=SpeculationMode.FIXED, n_predict=60
    )
    n_prompt = done.usage.n_prompt
    generated = done.context[n_prompt:]
    assert len(generated) == len(entries) > 20
    for i, (token, entry) in enumerate(zip(generated, entries, strict=True)):
        row = recorder.rows[0, n_prompt - 1 + i].astype(np.float64)
        all_logprobs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        best = np.sort(all_logprobs)[::-1][:N_TOP]
        assert entry.logprob == pytest.approx(all_logprobs[token], abs=1e-6)
        assert [top.logprob for top in entry.top] == pytest.approx(list(best), abs=1e-6)
