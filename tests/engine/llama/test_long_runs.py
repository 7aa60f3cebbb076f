"""Runs of one kind of character, which llama.cpp's pre-tokenizers read by recursion.

A stack that overflows ends the process, so each vocabulary is read in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from specd.engine.llama import library
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.tokenizer_limits import (
    MAX_CONTROL_TOKENS,
    STACK_BYTES,
    ControlSpellings,
    TokenizerStack,
)
from specd.errors import InvalidRequest
from tests.gguf_files import SPECIAL_TOKENS, byte_vocabulary, write_llama

pytestmark = pytest.mark.native

#: Pre-tokenizers that llama.cpp gives to std::regex, one for each set of patterns.
RECURSIVE = (
    "default",
    "afmoe",
    "bailingmoe",
    "bloom",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "exaone-moe",
    "falcon",
    "gpt-4o",
    "granite-embed-multi-97m",
    "jais-2",
    "minicpm5",
    "seed-coder",
    "spark2_5",
    "superbpe",
    "tekken",
    "tiny_aya",
    "ufakzeka",
    "viking",
    "youtu",
)

#: Reads the longest run of each kind that each file's vocabulary allows, and one longer by one.
_READ_LONGEST = """
import sys
from specd.engine.llama import library, tokenizer_limits
from specd.engine.llama.model import LlamaModel
from specd.errors import InvalidRequest

def refusal(vocabulary, text):
    try:
        assert vocabulary.tokenize(text, add_bos=False)
        return ""
    except InvalidRequest as error:
        return str(error)

tokenizer_limits.STACK_BYTES = int(sys.argv[1])
n_samples = int(sys.argv[2])
for path in sys.argv[3:]:
    model = LlamaModel(path, library.start())
    for kind, most in zip(tokenizer_limits.KINDS, model.vocabulary.max_runs(), strict=True):
        for sample in kind.samples[:n_samples] if most is not None else ():
            run = sample * (most // len(sample) + 1)
            print(path, kind.name, repr(sample), most, flush=True)
            said = refusal(model.vocabulary, run[:most])
            assert said == "" or "steps" in said, said
            said = refusal(model.vocabulary, run[:most + 1])
            assert f"run of {most + 1} {kind.name}" in said or "steps" in said, said
    # The line ends behind punctuation belong to the same match.
    unspaced, spaces, _ = (most or 0 for most in model.vocabulary.max_runs())
    said = refusal(model.vocabulary, "!" * unspaced + "\\n" * spaces)
    assert said == "" or "steps" in said, said
    model.close()
"""


def read_longest(stack_bytes: int, n_samples: int, *paths: Path) -> str:
    """Return a line for each sample that was read; the last line is the one that failed."""
    command = [
        sys.executable,
        "-c",
        _READ_LONGEST,
        str(stack_bytes),
        str(n_samples),
        *map(str, paths),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-1500:]
    return done.stdout


def test_every_pre_tokenizer_survives_its_longest_allowed_run(tmp_path: Path) -> None:
    paths = [
        write_llama(tmp_path / f"{name}.gguf", vocabulary=byte_vocabulary(pre=name))
        for name in RECURSIVE
    ]
    read = read_longest(2**22, 99, *paths)
    for path in paths:
        assert f"{path} characters without whitespace" in read


def test_a_run_of_400_000_letters_is_read(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre="tekken"))
    lengths = {int(line.split()[-1]) for line in read_longest(STACK_BYTES, 1, path).splitlines()}
    assert min(lengths) > 400_000


@pytest.mark.parametrize(
    "pre_tokenizer, text",
    [
        ("deepseek-llm", " " * 9_000 + "1"),
        ("deepseek-llm", (" " * 4_000 + "中") * 5),
        ("superbpe", "1" * 9_000),
        ("jais-2", " " * 200_000 + "a"),
        # Many short runs take as long as a long one.
        ("deepseek-llm", (" " * 255 + "1") * 1_100),
        ("deepseek-llm", (" " * 255 + "\x01") * 1_100),
        ("superbpe", ("1" * 255 + " ") * 1_100),
    ],
)
def test_a_run_that_takes_quadratic_time_is_refused(
    tmp_path: Path, pre_tokenizer: str, text: str
) -> None:
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre=pre_tokenizer))
    vocabulary = LlamaModel(str(path), library.start()).vocabulary
    with pytest.raises(InvalidRequest, match=r"runs of up to \d+ .*steps"):
        vocabulary.tokenize(text, add_bos=False)


def test_too_many_control_tokens_are_refused_before_the_search(
    tmp_path: Path,
) -> None:
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary())
    vocabulary = LlamaModel(str(path), library.start()).vocabulary
    user, end = SPECIAL_TOKENS[2], SPECIAL_TOKENS[-1]
    half = MAX_CONTROL_TOKENS // 2
    # Unless it is refused, llama.cpp searches this for more than a minute.
    with pytest.raises(InvalidRequest, match=f"has {8 * half + 8} control"):
        vocabulary.tokenize((user + "a" + end) * (4 * half + 4), add_bos=False)
    # Words that begin like none of them are no control tokens, however many there are.
    assert len(vocabulary.tokenize("<b> " * (half + 1), add_bos=False)) > half


def test_whitespace_is_counted_as_the_tokens_it_becomes() -> None:
    blanks = [*(" " * n for n in range(2, 32)), *("\n" * n for n in range(1, 9))]
    spellings = ControlSpellings.of(["<s>", "</s>", "<|end|>", *blanks, ""])
    assert spellings.prefixes == ("</s>", "<s>", "<|end|"[:6])
    line = " " * 8 + "self.assert(a, b)\n"
    assert spellings.count(line * 1000) == 2000  # a lone space is no such token
    assert spellings.count(" " * 310) == 10
    assert ControlSpellings.of(["<s>"]).count(line) == 0


@pytest.mark.parametrize(
    "pre_tokenizer, line",
    [
        ("deepseek-llm", " " * 40 + "1\n"),
        ("deepseek-llm", " " * 4 + "中"),
        ("jais-2", " " * 40 + "1\n"),
        ("superbpe", "1" * 16 + ", "),
    ],
)
def test_a_megabyte_of_indentation_or_of_numbers_is_read(
    tmp_path: Path, pre_tokenizer: str, line: str
) -> None:
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre=pre_tokenizer))
    vocabulary = LlamaModel(str(path), library.start()).vocabulary
    assert vocabulary.tokenize(line * 500, add_bos=False)
    # All of it would take seconds: here its steps are counted alone.
    stack = TokenizerStack(lambda _: None, pre_tokenizer)
    assert stack.call(line * (2**20 // len(line)), lambda: "read") == "read"


@pytest.mark.parametrize("text", ["a" * 50_000, "word " * 9_000, " " * 30_000 + "\n" * 30_000])
def test_long_runs_give_the_same_tokens_as_the_usual_stack(tmp_path: Path, text: str) -> None:
    # This pre-tokenizer does not recurse, so its plain call is safe.
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre="llama-bpe"))
    vocabulary = LlamaModel(str(path), library.start()).vocabulary
    assert vocabulary.max_runs() == (None, None, None)
    assert vocabulary.tokenize(text, add_bos=True) == vocabulary._tokenize(text, add_bos=True)  # noqa: SLF001 - the call on the usual stack


def test_the_stack_is_freed(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", vocabulary=byte_vocabulary(pre="tekken"))
    vocabulary = LlamaModel(str(path), library.start()).vocabulary
    vocabulary.tokenize("a" * 2_000, add_bos=False)
    own = psutil.Process()
    before = own.memory_info().vms
    vocabulary.tokenize("a" * 200_000, add_bos=False)
    # Python joins a thread a moment before the system has ended it.
    taken = (own.memory_info().vms - before for _ in range(10_000))
    assert any(n_bytes < STACK_BYTES // 2 for n_bytes in taken)
    assert threading.stack_size() == 0
