"""A first compilation where it can do no harm: some short schemas take minutes and gigabytes.

Few properties with `minProperties`, a large `multipleOf`, or `allOf` over patterns are enough, and
the library cannot be interrupted.  A process can: `python -m specd.engine.grammar.sandbox`.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys

import msgspec
from llguidance import LLTokenizer

from specd.core import Grammar
from specd.engine.grammar.source import compiled, refusal
from specd.errors import InvalidRequest
from specd.ipc import lifeline

log = logging.getLogger("specd.engine")

#: Limits of one compilation; waiting for a busy machine is no fault of the grammar.
CPU_S = 2
WALL_S = 20.0
MEMORY_BYTES = 1 << 30

_COMMAND = (sys.executable, "-m", "specd.engine.grammar.sandbox")


def check(grammar: Grammar) -> None:
    """Raise InvalidRequest where the grammar is wrong or too much to compile."""
    try:
        child = subprocess.run(
            _COMMAND,
            input=msgspec.msgpack.encode(grammar),
            capture_output=True,
            timeout=WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise too_complex(grammar) from error
    if child.returncode == 1 and child.stdout:
        raise InvalidRequest(child.stdout.decode("utf-8", "replace"))
    if child.returncode != 0:
        words = child.stderr.decode("utf-8", "replace").strip()
        log.warning("a grammar's compilation ended with %d: %s", child.returncode, words[-400:])
        raise too_complex(grammar)


def too_complex(grammar: Grammar) -> InvalidRequest:
    return refusal(grammar, "it is too complex to be compiled")


def main() -> int:
    """Compile what stdin holds; 0 is well, 1 with a sentence on stdout is not."""
    lifeline.die_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    grammar = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Grammar)
    try:
        # The cost of compiling is the grammar's own: a vocabulary of bytes shows it.
        compiled(grammar, LLTokenizer("byte"))
    except InvalidRequest as error:
        sys.stdout.buffer.write(str(error).encode())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
