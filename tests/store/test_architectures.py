"""Compare the sets of architectures with llama.cpp, which loads files with only a vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from gguf import MODEL_ARCH_NAMES

from specd.engine.llama import library
from specd.store.architectures import (
    CANNOT_REWIND,
    DIFFUSION,
    HAS_STATE_SNAPSHOTS,
    HYBRID,
    RECURRENT,
)
from tests.gguf_files import write_vocabulary

NAMES = {*MODEL_ARCH_NAMES.values(), *RECURRENT, *HYBRID, *DIFFUSION}


@pytest.mark.parametrize(
    "question, expected",
    [
        (llama_cpp.llama_model_is_recurrent, RECURRENT),
        (llama_cpp.llama_model_is_hybrid, HYBRID),
        (llama_cpp.llama_model_is_diffusion, DIFFUSION),
    ],
    ids=["recurrent", "hybrid", "diffusion"],
)
def test_the_set_matches_llama_cpp(
    tmp_path: Path, question: Callable[[object], bool], expected: frozenset[str]
) -> None:
    library.start()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    known, found = set(), set()
    for name in NAMES:
        path = write_vocabulary(tmp_path / "m.gguf", architecture=name)
        handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if handle:
            known.add(name)
            if question(handle):
                found.add(name)
            llama_cpp.llama_model_free(handle)
    assert len(known) > 100
    assert found == expected


def test_architectures_with_snapshots_have_recurrent_states() -> None:
    assert HAS_STATE_SNAPSHOTS < RECURRENT | HYBRID
    assert not CANNOT_REWIND & HAS_STATE_SNAPSHOTS
