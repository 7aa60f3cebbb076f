"""Measure how long pairing takes for every model of a large store, with real vocabularies.

    .venv/bin/python -m benchmarks.pairing_time [N_MODELS]

The script writes a store of N_MODELS (200) to a scratch folder.  A fifth of them has vocabularies
of 128,000 to 152,000 tokens, the others of 32,000.  Each is a vocabulary from llama.cpp's sources
with random changes, so that hardly any two are equal.  The weights are holes in sparse files.  No
rule names a model, so that each one is compared with the whole store.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from specd.pairs import HISTORY_FILE, History, Pairs, Vocabularies, load_rules
from specd.store import Library
from specd.store.gguf import GgufHeader, LongArray, Value, read_header
from tools.llama_cpp_source import vocabulary_file

BIG, SMALL = ("llama-bpe", "qwen2", "qwen35"), ("llama-spm", "phi-3", "deepseek-coder")
#: Parameters in billions, and layers.
SIZES = ((70, 80), (32, 64), (14, 48), (8, 32), (3, 28), (1, 16), (0.5, 24))
TOKENS, TYPES, SCORES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "scores"))
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5
_Q4_K = 12


def main(n_models: int = 200) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root, state = Path(scratch) / "models", Path(scratch) / "state"
        write_store(root, n_models)

        def start() -> tuple[Library, Pairs]:
            history = History(state / HISTORY_FILE)
            known = Vocabularies.in_state_dir(history)
            library = Library(root, demo=False, read=known.read)
            rules = load_rules()
            return library, Pairs(library, rules, history=history, vocabularies=known)

        library, pairs = start()
        print(f"{n_models} models")
        names = [name.short for name in library.names()]
        say("nothing known", lambda: pair_all(library, pairs, names))
        say("again", lambda: pair_all(library, pairs, names))
        library, pairs = start()
        say("after a restart", lambda: pair_all(library, pairs, names))
        targets = [library.resolve(name) for name in names]
        began = time.perf_counter()
        for target in targets:
            pairs.pair(target)
        print(f"one pair, all known:  {(time.perf_counter() - began) / len(names) * 1e3:6.3f} ms")


def pair_all(library: Library, pairs: Pairs, names: list[str]) -> int:
    """Pair all models and return how many got a drafter."""
    return sum(pairs.pair(library.resolve(name)).drafter is not None for name in names)


def say(what: str, work: Callable[[], int]) -> None:
    began, cpu_began = time.perf_counter(), time.process_time()
    n_paired = work()
    took, cpu_took = time.perf_counter() - began, time.process_time() - cpu_began
    print(f"{what + ':':<20} {took:6.2f} s, {cpu_took:.2f} s of CPU; {n_paired} drafters")


# --------------------------------------------------------------------------- the store


def write_store(root: Path, n_models: int) -> None:
    dice = random.Random(5)  # noqa: S311 - the same store every time
    headers = {name: read_header(vocabulary_file(name)) for name in BIG + SMALL}
    for number in range(n_models):
        name = dice.choice(BIG if number % 5 == 0 else SMALL)
        add(root, f"model{number}", changed(headers[name], dice), dice.choice(SIZES))


def changed(header: GgufHeader, dice: random.Random) -> dict[str, Value]:
    """Return the header's values with a changed token, another mark or more ids, or unchanged."""
    values = dict(header.values)
    tokens, types = values[TOKENS], values[TYPES]
    assert isinstance(tokens, LongArray) and isinstance(types, LongArray)  # noqa: PT018
    kinds = types.values()
    match dice.randrange(5):
        case 0 | 1:
            wanted = dice.choice((_NORMAL, _CONTROL))
            at = dice.choice([i for i, kind in enumerate(kinds) if kind == wanted])
            texts = list(tokens.values())
            texts[at] = f"[{dice.random()}]"
            values[TOKENS] = tuple(texts)
        case 2 | 3:
            n = dice.randrange(1, 129)
            values[TOKENS] = (*tokens.values(), *(f"[PAD{i}]" for i in range(n)))
            values[TYPES] = LongArray(types.raw + struct.pack("<i", _UNUSED) * n, "<i")
            values.pop(SCORES, None)
    return values


def add(root: Path, name: str, values: dict[str, Value], size: tuple[float, int]) -> None:
    """Add a model to the store; its blob's name is the hash of its header."""
    n_billions, n_layers = size
    tensors = b"".join(described(n_billions, n_layers))
    header = struct.pack("<4sIQQ", b"GGUF", 3, 9 * n_layers + 2, len(values))
    header += b"".join(string(key) + packed(value) for key, value in values.items()) + tensors
    digest = hashlib.sha256(header).hexdigest()
    blob = root / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    with blob.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + int(n_billions * 1e9))
    config = json.dumps({"model_format": "gguf"}).encode()
    config_digest = hashlib.sha256(config).hexdigest()
    (root / "blobs" / f"sha256-{config_digest}").write_bytes(config)
    kind = "application/vnd.ollama.image.model"
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "config", "digest": f"sha256:{config_digest}", "size": len(config)},
        "layers": [{"mediaType": kind, "digest": f"sha256:{digest}", "size": len(header)}],
    }
    path = root / "manifests/registry.ollama.ai/library" / name / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(manifest))


def described(n_billions: float, n_layers: int) -> Iterator[bytes]:
    """Yield tensor infos for a llama of this size, in one format, all at the same offset."""
    rows = int(n_billions * 1e9 / 256 / (9 * n_layers + 2))
    attention = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_norm")
    parts = (*attention, "ffn_gate", "ffn_up", "ffn_down", "ffn_norm")
    names = [f"blk.{layer}.{part}" for layer in range(n_layers) for part in parts]
    for name in ("token_embd", *names, "output"):
        yield string(f"{name}.weight") + struct.pack("<IQQIQ", 2, 256, rows, _Q4_K, 0)


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def packed(value: Value) -> bytes:
    """Return type and content of a value; supports the types in the vocabulary files."""
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<Iq", 11, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + string(value)
        case LongArray():
            kind = {"<i": 5, "<f": 6, "<Q": 8}[value.code]
            return struct.pack("<IIQ", 9, kind, len(value)) + value.raw
        case _:
            texts = b"".join(string(str(text)) for text in value)
            return struct.pack("<IIQ", 9, 8, len(value)) + texts


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
