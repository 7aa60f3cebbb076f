"""Untrusted GGUF files are read or refused, and do not affect other models."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specd.api.ollama.models import show_object, tags_object
from specd.errors import StoreError
from specd.go_json_encoder import dump_json
from specd.store import Library
from specd.store.gguf import MAX_ENTRIES, read_header
from tests.gguf_files import OllamaStore, byte_vocabulary, write_llama, write_mamba
from tests.malformed_gguf import (
    ARRAY,
    STRING,
    UINT8,
    Parts,
    Tensor,
    Value,
    mutate_gguf,
    take_apart,
    text,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("good")
    return [
        write_llama(folder / "llama").read_bytes(),
        write_mamba(folder / "mamba").read_bytes(),
        write_llama(
            folder / "long", vocabulary=byte_vocabulary().with_padding(1500), chat_template=None
        ).read_bytes(),
    ]


def test_an_unchanged_file_survives_the_fuzzers_round_trip(
    good: list[bytes], tmp_path: Path
) -> None:
    for raw in good:
        (tmp_path / "a").write_bytes(raw)
        (tmp_path / "b").write_bytes(take_apart(raw).write())
        before, after = read_header(tmp_path / "a"), read_header(tmp_path / "b")
        assert before.tensors == after.tensors
        assert list(before.values) == list(after.values)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**64))
@example(seed=1000022)  # a layer number of 5000 digits
def test_a_fuzzed_file_is_read_or_raises_store_error(
    good: list[bytes], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    strange = tmp_path / "strange.gguf"
    strange.write_bytes(mutate_gguf(draw.choice(good), draw))
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(good[0])
    store = OllamaStore(tmp_path / "models")
    config = {
        "model_family": "",
        "file_type": "",
        "model_type": "",
    }  # so the values come from the file
    store.add("strange", weights=strange, config=config)
    store.add("plain", weights=plain)
    library = Library(tmp_path / "models", demo=False)
    names = {summary.name for summary in library.list()}
    assert names == {"strange:latest", "plain:latest"}
    dump_json(tags_object(library.list()))
    try:
        info = library.show("strange", verbose=True)
        library.resolve("strange")
        library.shape(library.resolve("strange").weights)
    except StoreError:
        pass
    else:
        dump_json(show_object(info, system="", basename="", pair=None))


def bloated(kind: str) -> Parts:
    """Yield files whose entries are smallest on disk and largest in memory."""
    n = MAX_ENTRIES + 1
    match kind:
        case "values":
            values = [Value(f"{i:x}".encode(), UINT8, b"\0") for i in range(n)]
            return Parts(values=values)
        case "tensors":
            return Parts(tensors=[Tensor(f"{i:x}".encode(), [], 0, 0) for i in range(n)])
        case "small arrays":
            array = struct.pack("<IQ", STRING, 1024) + text(b"") * 1024
            return Parts(values=[Value(b"%d" % i, ARRAY, array) for i in range(17)])
        case "arrays in arrays":
            n = 2**20 + 1
            inner = struct.pack("<IQ", UINT8, 0) * n
            return Parts(values=[Value(b"k", ARRAY, struct.pack("<IQ", ARRAY, n) + inner)])
        case _:
            n = 2**22 + 1
            return Parts(values=[Value(b"k", ARRAY, struct.pack("<IQ", UINT8, n) + bytes(n))])


@pytest.mark.parametrize(
    "kind", ["values", "tensors", "small arrays", "arrays in arrays", "one array"]
)
def test_a_header_that_needs_far_more_memory_than_its_size_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "small arrays":
        monkeypatch.setattr(
            "specd.store.gguf._MAX_DECODED", 2**14
        )  # a million elements take seconds
    path = tmp_path / "bloated.gguf"
    path.write_bytes(bloated(kind).write())
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=r"is not a usable GGUF file: it(s| has)"):
            read_header(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * path.stat().st_size + 2**24


def test_reading_a_huge_header_stops_at_the_limit(tmp_path: Path) -> None:
    """In a sparse file, a text of a gigabyte takes no disk space and must take no memory."""
    path = tmp_path / "sparse.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"k") + struct.pack("<IQ", STRING, 2**30)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(2**31)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="truncated"):
            read_header(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**24
