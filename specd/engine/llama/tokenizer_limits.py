"""Limits on texts that would overflow the stack of llama.cpp's tokenizer or take it minutes.

llama.cpp runs the patterns of most pre-tokenizers with std::regex, which recurses once for each
character that a pattern's loop takes.  A thread's usual stack of 8 MiB overflows after about 26,000
characters, which ends the process.  So long runs are tokenized on a thread with a larger stack, and
a run that would not fit even there is refused.

The stack for each character depends on the pre-tokenizer and on the compiler.  It is measured once
for each vocabulary, when the first long run arrives.

llama.cpp also searches control and user-defined tokens before it tokenizes the rest.  The time for
that grows with the square of their number, so a text with too many of them is refused.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from specd.errors import InvalidRequest

T = TypeVar("T")

#: Address space of the stack.  The kernel allocates its pages on first use, and frees them when the
#: thread ends.
STACK_BYTES: Final = 2**28
#: Longest run in characters that fits on the usual stack of a thread.
MAX_SHALLOW_RUN: Final = 1024
#: Most steps of a regex whose time grows with the square of a run: a few seconds.
MAX_STEPS: Final = 2**26

#: Most control tokens in one text: a few seconds of search.
MAX_CONTROL_TOKENS: Final = 2**15
#: Length of the prefixes that are counted: thousands of control tokens share few prefixes.
_PREFIX_CHARACTERS: Final = 6

#: One match may span two runs, such as punctuation and the line ends after it.
_RUNS_OF_A_MATCH = 2
_SAMPLE_CHARACTERS = 1024
#: A regex that needs fewer bytes for each character does not recurse.
_MIN_RECURSION_BYTES = 64
#: Bytes for each character if they cannot be measured: twice what GCC's library takes.
_ASSUMED_BYTES = 640
_MADV_NOHUGEPAGE = 15

#: The characters that llama.cpp treats as whitespace, for use in a regex class.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run; each loop of each pre-tokenizer stays within one of these kinds.

    characters: the inside of a regex class.  samples: texts that, repeated, take the most stack.
    """

    name: str
    characters: str
    samples: tuple[str, ...]

    def longer_than(self, n: int) -> re.Pattern[str]:
        """Return a pattern that finds runs of more than n characters."""
        # Without the look-behind, each character of a run would start a search of its own.
        return re.compile(f"(?<![{self.characters}])[{self.characters}]{{{n + 1},}}")


KINDS: Final = (
    Kind(
        "characters without whitespace",
        "^" + _SPACE,
        ("a", "A", "aA", "1", "!", "=", "\x01", "é", "\u0301", "a\u0301", "中", "한", "😀", "a1-"),
    ),
    Kind("whitespace characters", _SPACE, (" ", "\n", "\t", "\r\n", "\u3000")),
    # exaone-moe treats letters with single spaces between them as one word.
    Kind("letters and spaces without punctuation", r"a-zA-Z \u0080-\U0010ffff", ("a ", "中 ")),
)
_SHALLOW: Final = tuple(kind.longer_than(MAX_SHALLOW_RUN) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class SlowRuns:
    """Runs that a pre-tokenizer reads in quadratic time: n characters take n² / divisor steps."""

    name: str
    pattern: re.Pattern[str]
    divisor: int = 1

    def n_steps(self, text: str) -> int:
        return sum(len(run[0]) ** 2 for run in self.pattern.finditer(text)) // self.divisor


#: Shorter runs are not counted: even in the longest prompt they take fewer than MAX_STEPS.
_MIN_SLOW_RUN = 4
#: Whitespace without line ends.
_BLANK: Final = _SPACE.replace(r"\t-\r", r"\t\v\f")

#: Slow runs by tokenizer.ggml.pre.
_SLOW_RUNS: Final = {
    # It splits at line ends, letters and punctuation, and then tries `\s+$` at each space left.
    "deepseek-llm": SlowRuns(
        "spaces",
        re.compile(f"(?<![{_BLANK}])[{_BLANK}]{{{_MIN_SLOW_RUN},}}+(?=[^{_BLANK}\\r\\n!-/:-~])"),
    ),
    # Its `\s*[\r\n]+` looks ahead to the end of the run after each 512 characters.
    "jais-2": SlowRuns(
        "whitespace characters",
        re.compile(f"(?<![{_SPACE}])[{_SPACE}]{{{_MIN_SLOW_RUN},}}+"),
        divisor=512,
    ),
    # Its look-ahead reads to the end of a number from each of its digits.
    "superbpe": SlowRuns("digits", re.compile(f"(?<![0-9])[0-9]{{{_MIN_SLOW_RUN},}}+")),
}


class TokenizerStack:
    """The stack on which a tokenizer runs, large enough for its text.  Any thread may use it."""

    def __init__(self, read: Callable[[str], object], pre_tokenizer: str) -> None:
        """Prepare for `read`, which tokenizes a text.  pre_tokenizer: tokenizer.ggml.pre."""
        self._read = read
        self._slow_runs = _SLOW_RUNS.get(pre_tokenizer)
        self._measuring = threading.Lock()
        self._max_runs: tuple[int | None, ...] | None = None

    def call(self, text: str, tokenize: Callable[[], T]) -> T:
        """Return what `tokenize` returns, called on a stack that is large enough for the text.

        Raises InvalidRequest for runs that are too long for the largest stack or take minutes.
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
        """Return the longest run of each of KINDS in characters; None: any length."""
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
        """Return the bytes of stack that the calling thread needed for the worst sample."""
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
            message = f"cannot allocate a stack of {STACK_BYTES >> 20} MiB"
            raise InvalidRequest(f"the prompt cannot be tokenized: {message}") from error
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _stack_range() -> tuple[int, int] | None:
    """Return address and bytes of the calling thread's stack; None if the C library cannot tell."""
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
    """Prevent the kernel from allocating 2 MiB at each first access to a page of the stack."""
    if (stack := _stack_range()) is not None:
        address, n_bytes = ctypes.c_void_p(stack[0]), ctypes.c_size_t(stack[1])
        ctypes.CDLL(None).madvise(address, n_bytes, _MADV_NOHUGEPAGE)


def _touched_bytes() -> int:
    """Return the bytes of the calling thread's stack used so far, or an assumed value."""
    stack = _stack_range()
    if stack is None:
        return _SAMPLE_CHARACTERS * _ASSUMED_BYTES
    n_pages = -(-stack[1] // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * n_pages)()
    address, n_bytes = ctypes.c_void_p(stack[0]), ctypes.c_size_t(stack[1])
    if ctypes.CDLL(None).mincore(address, n_bytes, resident) != 0:
        return _SAMPLE_CHARACTERS * _ASSUMED_BYTES
    return bytes(resident).count(1) * mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class ControlSpellings:
    """The spellings of a vocabulary's control tokens, condensed for counting.

    prefixes: the first characters of the tokens, each once.
    blanks: for tokens that repeat one blank: the blank → shortest and longest, in characters.
    """

    prefixes: tuple[str, ...]
    blanks: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, spellings: Iterable[str]) -> ControlSpellings:
        blanks: dict[str, tuple[int, int]] = {}
        words: set[str] = set()
        for spelling in filter(None, spellings):
            if spelling[0].isspace() and len(set(spelling)) == 1:
                shortest, longest = blanks.get(spelling[0], (len(spelling), 0))
                n = len(spelling)
                blanks[spelling[0]] = min(shortest, n), max(longest, n)
            else:
                words.add(spelling[:_PREFIX_CHARACTERS])
        prefixes: list[str] = []
        for prefix in sorted(words):
            if not prefixes or not prefix.startswith(prefixes[-1]):
                prefixes.append(prefix)
        return cls(tuple(prefixes), blanks)

    def count(self, text: str) -> int:
        """Return the number of tokens that llama.cpp may find in the text, or more."""
        n_words = sum(map(text.count, self.prefixes))
        return n_words + sum(self._count_runs(text, blank) for blank in self.blanks)

    def _count_runs(self, text: str, blank: str) -> int:
        """Return the number of tokens for runs of a blank; each run becomes as few as possible."""
        shortest, longest = self.blanks[blank]
        runs = re.finditer(f"{re.escape(blank)}{{{shortest},}}", text)
        return sum(-(-len(run[0]) // longest) for run in runs)
