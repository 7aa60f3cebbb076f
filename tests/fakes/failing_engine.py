"""The real engine with llama.cpp, which fails as engine_faults.py describes at an exact moment.

`python -m tests.fakes.failing_engine --fd N` replaces `python -m specd.engine`.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable

import llama_cpp

from specd.core import EngineSpec
from specd.engine import loader
from specd.engine.backend import Batch
from specd.engine.llama.context import LlamaContext
from tests.fakes.engine_faults import ENGINE_FAULTS, Script

#: The moment "late" is this many passes after a prompt: the answer has begun by then.
_LATE = 20

_script = Script(int(sys.argv[2])) if sys.argv[1] == "--fd" else Script(-1)
_last: list[LlamaContext] = []
_is_loading, _n_since_prompt = True, 0


def _abort(_fd: int) -> None:
    """Fail an assertion of llama.cpp: no sequence has such an id."""
    memory = llama_cpp.llama_get_memory(_last[-1].handle)
    llama_cpp.llama_memory_seq_rm(memory, 300, 0, 1)


ENGINE_FAULTS["native"] = _abort
_decode, _load = LlamaContext.decode, loader.load_pair


def decode(context: LlamaContext, batch: Batch) -> None:
    global _n_since_prompt  # noqa: PLW0603 - there is one engine in a process
    _last[:] = [context]
    if _is_loading:
        _script.at("load")
    elif not all(batch.wants_logits):
        _n_since_prompt = 0
        _script.at("prefill")
    else:
        _n_since_prompt += 1
        _script.at("decode" if _n_since_prompt < _LATE else "late")
        time.sleep(_script.pace_s)
    _decode(context, batch)


def load(spec: EngineSpec, on_progress: Callable[[float], None]) -> loader.LoadedPair:
    global _is_loading  # noqa: PLW0603
    _script.loads(spec.weights)
    loaded = _load(spec, on_progress)
    _is_loading = False
    return loaded


LlamaContext.decode = decode  # type: ignore[method-assign, assignment]
loader.load_pair = load
runpy.run_module("specd.engine", run_name="__main__", alter_sys=True)
