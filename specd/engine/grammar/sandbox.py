"""A first compilation of each grammar in a process with limits.

Some short schemas take minutes and gigabytes: a few properties with `minProperties`, a large
`multipleOf`, or `allOf` over patterns.  The library cannot be interrupted, but the process
`python -m specd.engine.grammar.sandbox` can be ended.
"""

from __future__ import annotations

import signal
import sys
from typing import Final

import msgspec
from llguidance import LLTokenizer

from specd.core import Grammar
from specd.engine.grammar.translation import compile_matcher, grammar_error
from specd.errors import InvalidRequest
from specd.worker_pool import Limits, WorkerPool, run_worker

#: Limits of one compilation; wall_s is generous, since the machine may be busy.
LIMITS: Final = Limits(cpu_s=2.0, wall_s=20.0, memory_bytes=1 << 30)
#: Idle and most processes.  One stays ready, because its start takes longer than most compilations.
_N_IDLE: Final = 1
_N_MOST: Final = 4


class Sandbox:
    """A checker of grammars in other processes.  Several threads may call it; calls block."""

    def __init__(self) -> None:
        module = "specd.engine.grammar.sandbox"
        self.workers = WorkerPool(
            module,
            max_workers=_N_MOST,
            max_idle=_N_IDLE,
            limit_signals=(signal.SIGABRT, signal.SIGSEGV),
        )

    def start(self) -> None:
        """Start a process, so that the first grammar need not wait for it."""
        self.workers.start()

    def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest if the grammar is invalid or too complex to compile.

        Raises WorkerDied if two processes ended for another reason than its limits.
        """
        answer = self.workers.call(msgspec.json.encode(grammar))
        if answer is None:
            self.start()
            raise grammar_error(grammar, "it is too complex to be compiled")
        if sentence := msgspec.json.decode(answer, type=str):
            raise InvalidRequest(sentence)


def check_line(line: bytes) -> bytes:
    """Return what is wrong with the grammar in a line, "" if nothing, as JSON."""
    sentence = ""
    try:
        # The cost of compilation hardly depends on the vocabulary, so one of single bytes suffices.
        compile_matcher(msgspec.json.decode(line, type=Grammar), LLTokenizer("byte"))
    except InvalidRequest as error:
        sentence = str(error)
    return msgspec.json.encode(sentence)


if __name__ == "__main__":
    sys.exit(run_worker(check_line, LIMITS))
