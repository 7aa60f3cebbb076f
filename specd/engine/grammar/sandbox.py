"""A first compilation where it can do no harm: some short schemas take minutes and gigabytes.

Few properties with `minProperties`, a large `multipleOf`, or `allOf` over patterns are enough, and
the library cannot be interrupted.  `python -m specd.engine.grammar.sandbox` is a process that can.
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

#: Limits of one compilation; waiting for a busy machine is no fault of the grammar.
LIMITS: Final = Limits(cpu_s=2.0, wall_s=20.0, memory_bytes=1 << 30)
#: To start one takes longer than most compilations; more than one is for crowds.
_N_IDLE: Final = 1
_N_MOST: Final = 4


class Sandbox:
    """Checks grammars in a process that is kept.  Safe to use from several threads, blocking."""

    def __init__(self) -> None:
        module = "specd.engine.grammar.sandbox"
        self.workers = WorkerPool(
            module,
            max_workers=_N_MOST,
            max_idle=_N_IDLE,
            limit_signals=(signal.SIGABRT, signal.SIGSEGV),
        )

    def start(self) -> None:
        """Have a process ready, so that the first grammar need not wait for it."""
        self.workers.start()

    def check(self, grammar: Grammar) -> None:
        """Raise InvalidRequest where the grammar is wrong or too much to compile.

        Raises WorkerDied where two processes ended over it for no reason of its own.
        """
        answer = self.workers.call(msgspec.json.encode(grammar))
        if answer is None:
            self.start()
            raise grammar_error(grammar, "it is too complex to be compiled")
        if sentence := msgspec.json.decode(answer, type=str):
            raise InvalidRequest(sentence)


def check_line(line: bytes) -> bytes:
    """What is wrong with the grammar of a line, if anything."""
    sentence = ""
    try:
        # The cost of compiling is the grammar's own: a vocabulary of bytes shows it.
        compile_matcher(msgspec.json.decode(line, type=Grammar), LLTokenizer("byte"))
    except InvalidRequest as error:
        sentence = str(error)
    return msgspec.json.encode(sentence)


if __name__ == "__main__":
    sys.exit(run_worker(check_line, LIMITS))
