"""Prepare the demo pair's text: Python's standard library, its chat turns, and their tokens."""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers import decoders as tok_decoders

SEED = 20240607
VOCAB_SIZE = 2048
BOS, END, SYSTEM, USER, ASSISTANT = (
    "<|bos|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
SPECIAL_TOKENS = (BOS, END, SYSTEM, USER, ASSISTANT)

# The split that llama.cpp applies for tokenizer.ggml.pre = "llama-bpe".
LLAMA_BPE_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

EXCLUDED_PARTS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data", "_bundled"}
)
EXCLUDED_PATHS = frozenset({"html/entities.py"})
HELD_OUT_SHARE = 0.05
CHAT_SHARE = 0.13
SNIPPET_SHARE = 0.08

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You write Python code.",
    "You are a Python programmer. Answer with code.",
)


@dataclass(frozen=True)
class CorpusFile:
    """One file of the corpus, named relative to the standard library."""

    name: str
    text: str


@dataclass(frozen=True)
class Function:
    """A documented function found in a source file."""

    name: str
    arguments: str
    module: str
    summary: str
    code: str


@dataclass(frozen=True)
class Corpus:
    """The standard library, split into files for training and for measurements."""

    training: list[CorpusFile]
    held_out: list[CorpusFile]
    sha256: str


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the running Python's standard library and hold some of its files out."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    sources = list(_read_sources(root))
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.text.encode() + b"\0")
    count = round(len(sources) * HELD_OUT_SHARE)
    held = set(random.Random(SEED).sample(range(len(sources)), count))  # noqa: S311 - repeatable, no secret
    return Corpus(
        training=[s for i, s in enumerate(sources) if i not in held],
        held_out=[s for i, s in enumerate(sources) if i in held],
        sha256=digest.hexdigest(),
    )


def _read_sources(root: Path) -> Iterator[CorpusFile]:
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        excluded = EXCLUDED_PARTS.intersection(name.parts) or name.as_posix() in EXCLUDED_PATHS
        if excluded or name.name.startswith("_sysconfigdata"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            yield CorpusFile(name.as_posix(), text)


def functions_of(source: CorpusFile) -> list[Function]:
    """Return the documented functions and methods of a file as dedented source."""
    module = source.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    lines = source.text.splitlines(keepends=True)
    found = []
    for node in ast.walk(ast.parse(source.text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        doc = ast.get_docstring(node)
        code = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip()
        if doc and 60 <= len(code) <= 3000:
            summary = doc.strip().splitlines()[0].strip()
            arguments = ast.unparse(node.args)
            found.append(Function(node.name, arguments, module, summary, code + "\n"))
    return found


def user_turn(function: Function, rng: random.Random) -> str:
    """Return one phrasing of a user's request for this function."""
    name, summary = function.name, function.summary
    return rng.choice(
        (
            f"Write a function {name}. {summary}",
            f"Write a function {name}. {summary}",
            f"Write a Python function {name}. {summary}",
            f"Write a Python function called {name}.",
            f"Implement {name}({function.arguments}). {summary}",
            f"Write the function {name} of {function.module}.",
            summary,
        )
    )


def chat_document(functions: list[Function], rng: random.Random) -> str:
    """Return a conversation that asks for these functions, in the chat template's form."""
    system = f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{END}" if rng.random() < 0.3 else ""
    turns = (
        f"{USER}{user_turn(function, rng)}{END}{ASSISTANT}{function.code}{END}"
        for function in functions
    )
    return BOS + system + "".join(turns)


def prompts(sources: list[CorpusFile], count: int, rng: random.Random) -> list[str]:
    """Return beginnings of files, heads of functions, and questions, a third each."""
    functions = [f for source in sources for f in functions_of(source)]
    asked = []
    for index in range(count):
        function = rng.choice(functions)
        if index % 3 == 0:
            text = rng.choice(sources).text
            start = rng.randrange(max(1, len(text) - 400))
            start = text.rfind("\n", 0, start) + 1
            asked.append(BOS + text[start : start + 400])
        elif index % 3 == 1:
            asked.append(f"{BOS}def {function.name}({function.arguments}):\n")
        else:
            asked.append(f"{BOS}{USER}{user_turn(function, rng)}{END}{ASSISTANT}")
    return asked


def documents(sources: list[CorpusFile], seed: int) -> list[str]:
    """Return whole files, chats and single functions, shuffled, in the training proportions."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
    plain = [f"{BOS}{source.text}{END}" for source in sources]
    functions = [function for source in sources for function in functions_of(source)]
    total = sum(map(len, plain)) / (1.0 - CHAT_SHARE - SNIPPET_SHARE)
    chats = _take(_chats(functions, rng), total * CHAT_SHARE)
    snippets = _take(_snippets(functions, rng), total * SNIPPET_SHARE)
    mixed = plain + chats + snippets
    rng.shuffle(mixed)
    return mixed


def _chats(functions: list[Function], rng: random.Random) -> Iterator[str]:
    order = rng.sample(functions, len(functions))
    while order:
        count = 2 if rng.random() < 0.15 else 1
        yield chat_document(order[:count], rng)
        del order[:count]


def _snippets(functions: list[Function], rng: random.Random) -> Iterator[str]:
    for function in rng.sample(functions, len(functions)):
        yield f"{BOS}{function.code}{END}"


def _take(texts: Iterator[str], budget: float) -> list[str]:
    taken: list[str] = []
    used = 0
    for text in texts:
        if used >= budget:
            break
        taken.append(text)
        used += len(text)
    return taken


def train_tokenizer(sources: list[CorpusFile]) -> Tokenizer:
    """Train a byte-level BPE on the training files, with llama.cpp's split."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_BPE_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tok_decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((source.text for source in sources), trainer)
    return tokenizer


@dataclass(frozen=True)
class Tokens:
    """Documents as one run of token ids, with the place where each one starts."""

    ids: np.ndarray
    starts: np.ndarray


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tokens:
    """Encode documents back to back."""
    encoded = [np.array(e.ids, dtype=np.int64) for e in tokenizer.encode_batch_fast(texts)]
    lengths = np.array([len(ids) for ids in encoded])
    return Tokens(np.concatenate(encoded), np.cumsum(lengths) - lengths)


def batches(tokens: Tokens, batch: int, length: int, seed: int) -> Iterator[np.ndarray]:
    """Yield (batch, length + 1) windows forever; one row in four starts with a document."""
    rng = np.random.default_rng(seed)
    last = len(tokens.ids) - length - 1
    starts = tokens.starts[tokens.starts <= last]
    aligned = batch // 4
    grid: np.ndarray = np.empty(0, dtype=np.int64)
    while True:
        if len(grid) < batch - aligned:
            fresh = np.arange(rng.integers(length), last, length)
            grid = np.concatenate([grid, rng.permutation(fresh)])
        rows, grid = grid[: batch - aligned], grid[batch - aligned :]
        rows = np.concatenate([rows, rng.choice(starts, aligned)])
        yield tokens.ids[rows[:, None] + np.arange(length + 1)]
