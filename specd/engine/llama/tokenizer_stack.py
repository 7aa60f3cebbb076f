"""A stack for llama.cpp's tokenizer, and the longest run of characters that it holds.

llama.cpp gives most pre-tokenizers' patterns to std::regex, which calls itself once for each
character that a pattern's loop takes.  A thread's usual 8 MiB end after some 26,000 characters,
and with them the process.  So long runs are read on a thread with a larger stack, and a run that
would not fit even there is refused.

How much stack a character takes depends on the pre-tokenizer and on the compiler.  It is measured
once for each vocabulary, when the first long run arrives.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from specd.errors import InvalidRequest

T = TypeVar("T")

#: Address space of the stack.  Memory is taken as it is used, and given back with the thread.
STACK_BYTES: Final = 2**28
#: Characters of a run that any thread's own stack holds.
MAX_SHALLOW_RUN: Final = 1024
#: Steps of a regex whose time grows with the square of a run: some seconds.
MAX_STEPS: Final = 2**26

#: One match may span two runs, such as punctuation and the line ends behind it.
_RUNS_OF_A_MATCH = 2
_SAMPLE_CHARACTERS = 1024
#: Less than this is not recursion but what every call takes.
_MIN_RECURSION_BYTES = 64
#: Bytes for each character where they cannot be measured: twice what GCC's library takes.
_ASSUMED_BYTES = 640
_MADV_NOHUGEPAGE = 15

#: What llama.cpp counts as whitespace, for the inside of a class.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: each loop of each pre-tokenizer stays within one of these.

    characters: the inside of a regex class.  samples: repeated, they take most stack.
    """

    name: str
    characters: str
    samples: tuple[str, ...]

    def longer_than(self, n: int) -> re.Pattern[str]:
        # Without the look behind, each character of a run would begin a search of its own.
        return re.compile(f"(?<![{self.characters}])[{self.characters}]{{{n + 1},}}")


KINDS: Final = (
    Kind(
        "characters without whitespace",
        "^" + _SPACE,
        ("a", "A", "aA", "1", "!", "=", "\x01", "é", "\u0301", "a\u0301", "中", "한", "😀", "a1-"),
    ),
    Kind("whitespace characters", _SPACE, (" ", "\n", "\t", "\r\n", "\u3000")),
    # exaone-moe takes letters with single spaces between them for one word.
    Kind("letters and spaces without punctuation", r"a-zA-Z \u0080-\U0010ffff", ("a ", "中 ")),
)
_SHALLOW: Final = tuple(kind.longer_than(MAX_SHALLOW_RUN) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class SlowRuns:
    """Runs that a pre-tokenizer reads in quadratic time; n characters take n² / divisor steps."""

    name: str
    pattern: re.Pattern[str]
    divisor: int = 1

    def n_steps(self, text: str) -> int:
        return sum(len(run[0]) ** 2 for run in self.pattern.finditer(text)) // self.divisor


#: Shorter runs are not counted: of the longest prompt they take fewer than MAX_STEPS.
_MIN_SLOW_RUN = 4
#: Whitespace but for the line ends.
_BLANK: Final = _SPACE.replace(r"\t-\r", r"\t\v\f")

#: By tokenizer.ggml.pre.
_SLOW_RUNS: Final = {
    # It cuts at line ends, letters and punctuation, and then tries `\s+$` at each space left.
    "deepseek-llm": SlowRuns(
        "spaces",
        re.compile(f"(?<![{_BLANK}])[{_BLANK}]{{{_MIN_SLOW_RUN},}}+(?=[^{_BLANK}\\r\\n!-/:-~])"),
    ),
    # Its `\s*[\r\n]+` looks ahead to the end after each 512 of them.
    "jais-2": SlowRuns(
        "whitespace characters",
        re.compile(f"(?<![{_SPACE}])[{_SPACE}]{{{_MIN_SLOW_RUN},}}+"),
        divisor=512,
    ),
    # Its look ahead reads to the end of a number from each of the digits.
    "superbpe": SlowRuns("digits", re.compile(f"(?<![0-9])[0-9]{{{_MIN_SLOW_RUN},}}+")),
}


class TokenizerStack:
    """Runs a tokenizer on a stack that its text fits.  Used by any thread."""

    def __init__(self, read: Callable[[str], object], pre_tokenizer: str) -> None:
        """read: tokenizes a text on the calling thread.  pre_tokenizer: tokenizer.ggml.pre."""
        self._read = read
        self._slow_runs = _SLOW_RUNS.get(pre_tokenizer)
        self._measuring = threading.Lock()
        self._max_runs: tuple[int | None, ...] | None = None

    def call(self, text: str, tokenize: Callable[[], T]) -> T:
        """Return what `tokenize` returns for the text, called where its stack suffices.

        Raises InvalidRequest for a run that no stack here holds, or runs that would take minutes.
        """
        if len(text) <= MAX_SHALLOW_RUN:
            return tokenize()
        if self._slow_runs is not None:
            _check_time(text, self._slow_runs)
        if not any(pattern.search(text) for pattern in _SHALLOW):
            return tokenize()
        for kind, most in zip(KINDS, self.max_runs(), strict=True):
            if most is not None and (run := kind.longer_than(most).search(text)):
                raise InvalidRequest(
                    f"the prompt has a run of {len(run[0])} {kind.name}: this model's tokenizer"
                    f" reads at most {most}"
                )
        return _on_deep_stack(tokenize)

    def max_runs(self) -> tuple[int | None, ...]:
        """Longest run of each of KINDS in characters; None: its length takes no stack."""
        with self._measuring:
            if self._max_runs is None:
                self._max_runs = tuple(self._max_run(kind) for kind in KINDS)
            return self._max_runs

    def _max_run(self, kind: Kind) -> int | None:
        n_bytes = _on_deep_stack(lambda: self._stack_bytes(kind))
        per_character = n_bytes / _SAMPLE_CHARACTERS
        if per_character < _MIN_RECURSION_BYTES:
            return None
        return int(STACK_BYTES / _RUNS_OF_A_MATCH / per_character)

    def _stack_bytes(self, kind: Kind) -> int:
        """Stack that the calling thread took for the worst sample."""
        for sample in kind.samples:
            n = _SAMPLE_CHARACTERS // len(sample)
            self._read(sample * n)
        return _touched_bytes()


def _check_time(text: str, slow: SlowRuns) -> None:
    if (n_steps := slow.n_steps(text)) > MAX_STEPS:
        longest = max(len(run[0]) for run in slow.pattern.finditer(text))
        raise InvalidRequest(
            f"the prompt has runs of up to {longest} {slow.name}, and this model's tokenizer is"
            f" too slow on them ({n_steps} steps, limit {MAX_STEPS}); shorten the runs"
        )


_starting = threading.Lock()


def _on_deep_stack(work: Callable[[], T]) -> T:
    """Return what `work` returns, called on a thread with STACK_BYTES of stack."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        _use_small_pages()
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (raised again below, by the caller's thread)
            errors.append(error)

    thread = threading.Thread(target=run, name="tokenizer", daemon=True)
    with _starting:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            message = f"there is no room for the {STACK_BYTES >> 20} MiB of stack that it takes"
            raise InvalidRequest(f"the prompt cannot be tokenized: {message}") from error
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _stack_range() -> tuple[int, int] | None:
    """Address and bytes of the calling thread's stack; None where the C library cannot say."""
    c = ctypes.CDLL(None)
    if not hasattr(c, "pthread_getattr_np"):
        return None
    c.pthread_self.restype = ctypes.c_void_p
    attributes = ctypes.create_string_buffer(256)
    if c.pthread_getattr_np(ctypes.c_void_p(c.pthread_self()), attributes) != 0:
        return None
    address, n_bytes = ctypes.c_void_p(), ctypes.c_size_t()
    code = c.pthread_attr_getstack(attributes, ctypes.byref(address), ctypes.byref(n_bytes))
    c.pthread_attr_destroy(attributes)
    return (address.value, n_bytes.value) if code == 0 and address.value else None


def _use_small_pages() -> None:
    """Keep the kernel from taking 2 MiB of memory at each touch of the stack."""
    if (stack := _stack_range()) is not None:
        address, n_bytes = ctypes.c_void_p(stack[0]), ctypes.c_size_t(stack[1])
        ctypes.CDLL(None).madvise(address, n_bytes, _MADV_NOHUGEPAGE)


def _touched_bytes() -> int:
    """Memory that the calling thread's stack takes up by now; an assumption where none can say."""
    stack = _stack_range()
    if stack is None:
        return _SAMPLE_CHARACTERS * _ASSUMED_BYTES
    n_pages = -(-stack[1] // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * n_pages)()
    address, n_bytes = ctypes.c_void_p(stack[0]), ctypes.c_size_t(stack[1])
    if ctypes.CDLL(None).mincore(address, n_bytes, resident) != 0:
        return _SAMPLE_CHARACTERS * _ASSUMED_BYTES
    return bytes(resident).count(1) * mmap.PAGESIZE
