"""A drafter whose vocabulary is smaller than its target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import TokenType

from specd.core import SpeculationMode
from tests import gguf_files
from tests.engine.llama.conftest import load


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_an_id_that_the_drafter_lacks_fails_no_request(tmp_path: Path, temperature: float) -> None:
    vocabulary = gguf_files.byte_vocabulary()
    bigger = vocabulary.with_padding(64)
    # Ordinary ids, so that the target says them as well as any other.
    bigger = replace(bigger, types=(*vocabulary.types, *([int(TokenType.NORMAL)] * 64)))
    target = gguf_files.write_llama(tmp_path / "t.gguf", vocabulary=bigger)
    drafter = gguf_files.write_llama(tmp_path / "d.gguf", vocabulary=vocabulary, seed=5)
    engine = load(target, drafter)
    prompt = "the thing", len(vocabulary) + 3
    plan = {"seed": 3, "temperature": temperature, "top_k": 0, "top_p": 1.0, "n_predict": 60}
    text, done = engine.answer(prompt, mode=SpeculationMode.FIXED, **plan)
    assert done.speculation.draft_n > 0
    assert "[PAD" in text
    assert engine.answer(prompt, n_draft_max=0, **plan)[0] == text
