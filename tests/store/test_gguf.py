"""GGUF headers: values, tensors, and the rejection of hostile files."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFEndian, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.errors import StoreError
from specd.store.gguf import LONG_ARRAY, GgufHeader, LongArray, read_header
from tests import gguf_files
from tests.gguf_files import VOCABULARY, byte_vocabulary, write_llama

BIG_VOCABULARY = byte_vocabulary().with_padding(1500)


@pytest.fixture(scope="module")
def good_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_llama(tmp_path_factory.mktemp("good") / "good.gguf")
    return path.read_bytes()


def test_values_and_tensors_are_read(tmp_path: Path) -> None:
    header = read_header(write_llama(tmp_path / "a.gguf", extra={"general.quoted": 'é"'}))
    assert header.architecture == "llama"
    assert header.arch_integer("context_length") == 512
    assert header.flag("tokenizer.ggml.add_bos_token") is True
    assert header.text("general.quoted") == 'é"'
    assert header.strings("tokenizer.ggml.tokens") == VOCABULARY.tokens
    assert header.token("tokenizer.ggml.bos_token_id") == "<|begin|>"
    names = {tensor.name: tensor for tensor in header.tensors}
    assert names["token_embd.weight"].shape == (32, len(VOCABULARY))
    assert names["token_embd.weight"].type == "F32"
    assert header.parameter_count > len(VOCABULARY) * 32


def test_a_missing_value_or_one_of_another_type_is_empty(tmp_path: Path) -> None:
    header = read_header(write_llama(tmp_path / "a.gguf"))
    assert header.text("llama.block_count") == ""
    assert header.integer("general.name", 7) == 7
    assert header.flag("general.name") is None
    assert header.strings("general.name") == ()
    assert header.token("no.such.key") == ""
    assert GgufHeader(tmp_path, {"t": 0}, ()).token("t") == ""


def test_long_arrays_are_decoded_on_use(tmp_path: Path) -> None:
    header = read_header(write_llama(tmp_path / "a.gguf", vocabulary=BIG_VOCABULARY))
    tokens = header.values["tokenizer.ggml.tokens"]
    types = header.values["tokenizer.ggml.token_type"]
    assert isinstance(tokens, LongArray)
    assert isinstance(types, LongArray)
    assert len(tokens) == len(types) == len(BIG_VOCABULARY) > LONG_ARRAY
    assert tokens.values() == BIG_VOCABULARY.tokens == header.strings("tokenizer.ggml.tokens")
    assert types.values() == BIG_VOCABULARY.types
    assert (tokens[0], tokens[300], types[270]) == (
        BIG_VOCABULARY.tokens[0],
        BIG_VOCABULARY.tokens[300],
        BIG_VOCABULARY.types[270],
    )
    assert header.token("tokenizer.ggml.eos_token_id") == "<|end|>"
    with pytest.raises(IndexError):
        tokens[len(tokens)]


def test_a_header_longer_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    tokens = (*VOCABULARY.tokens, *(f"{i:0>100}" for i in range(12_000)))
    types = (*VOCABULARY.types, *(1 for _ in range(12_000)))
    big = dataclasses.replace(VOCABULARY, tokens=tokens, types=types)
    header = read_header(write_llama(tmp_path / "a.gguf", vocabulary=big))
    assert header.strings("tokenizer.ggml.tokens") == tokens


# The reader finds runs of short strings at once; these strings may be between runs.
ODD_STRINGS = (b"", b"\0", bytes(8), bytes(7) + b"x", b"x" * 255, b"x" * 256, b"y" * 5000, b"\5")


@given(
    st.lists(
        st.tuples(
            st.sampled_from((*ODD_STRINGS, b"a", b"token")) | st.binary(max_size=20),
            st.integers(1, 200),
        ),
        max_size=30,
    ),
    st.sampled_from("<>"),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strings_of_every_kind_and_length_are_read(
    tmp_path: Path, runs: list[tuple[bytes, int]], order: str
) -> None:
    strings = [string for string, n in runs for _ in range(n)]
    packed = b"".join(struct.pack(f"{order}Q", len(string)) + string for string in strings)
    path = tmp_path / "strings.gguf"
    path.write_bytes(
        b"GGUF"
        + struct.pack(f"{order}IQQ", 3, 0, 2)
        + struct.pack(f"{order}Q", 4)
        + b"list"
        + struct.pack(f"{order}IIQ", 9, 8, len(strings))
        + packed
        + struct.pack(f"{order}Q", 4)
        + b"then"
        + struct.pack(f"{order}II", 4, 77)
    )
    header = read_header(path)
    assert header.strings("list") == tuple(s.decode("utf-8", "replace") for s in strings)
    assert header.integer("then") == 77
    path.write_bytes(path.read_bytes()[:-17])
    with pytest.raises(StoreError, match="truncated"):
        read_header(path)


def write_all_kinds(path: Path, endian: GGUFEndian) -> Path:
    writer = GGUFWriter(path, "llama", endianess=endian)
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -1)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -2)
    writer.add_int32("i32", -3)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -4)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.25)
    writer.add_array("flags", [True, False])
    writer.add_array("floats", [1.0, 2.0])
    writer.add_array("nested", [[1, 2], [3, 4]])
    writer.add_array("long", list(range(2000)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("endian", [GGUFEndian.LITTLE, GGUFEndian.BIG])
def test_every_kind_of_value_is_read_in_both_byte_orders(
    tmp_path: Path, endian: GGUFEndian
) -> None:
    values = dict(read_header(write_all_kinds(tmp_path / "a.gguf", endian)).values)
    long = values.pop("long")
    assert isinstance(long, LongArray)
    assert long.values() == tuple(range(2000))
    assert long[1999] == 1999
    assert values == {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "i32": -3,
        "u64": 2**63,
        "i64": -4,
        "f32": 0.5,
        "f64": 0.25,
        "flags": (True, False),
        "floats": (1.0, 2.0),
        "nested": ((1, 2), (3, 4)),
    }


@pytest.mark.parametrize(
    "write,reason",
    [
        (gguf_files.write_truncated, "truncated"),
        (lambda path: gguf_files.write_truncated(path, keep=0.99), "truncated"),
        (lambda path: gguf_files.write_truncated(path, keep=0.05), "truncated"),
        (gguf_files.write_bad_magic, "letters GGUF"),
        (gguf_files.write_huge_counts, "more than its 88 bytes"),
        (gguf_files.write_huge_array, "array of 1152921504606846976 elements"),
        (lambda path: gguf_files.write_huge_array(path, n_elements=1000), "truncated"),
    ],
)
def test_the_error_for_a_damaged_file_names_it_and_the_reason(
    tmp_path: Path, write: Callable[[Path], Path], reason: str
) -> None:
    path = write(tmp_path / "bad.gguf")
    with pytest.raises(StoreError, match=reason) as refused:
        read_header(path)
    assert str(path) in str(refused.value)


def one_value(kind: int, payload: bytes, n_values: int = 1) -> bytes:
    value = struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + payload
    return b"GGUF" + struct.pack("<IQQ", 3, 0, n_values) + value * n_values


NESTED = struct.pack("<IQ", 9, 1) * 6 + struct.pack("<IQ", 4, 0)
TENSOR = struct.pack("<Q", 1) + b"t" + struct.pack("<IIQ", 0, 0, 0)


@pytest.mark.parametrize(
    "data,reason",
    [
        (one_value(99, bytes(8)), "unknown type 99"),
        (one_value(4, bytes(4), n_values=2), "occurs twice"),
        (one_value(9, NESTED), "nested too deeply"),
        (one_value(8, struct.pack("<Q", 2**63)), "truncated"),
        (one_value(9, struct.pack("<IQQ", 8, 2, 8) + bytes(8)), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + TENSOR * 2 + bytes(64), "'t' occurs twice"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<QI", 0, 99) + bytes(64),
            "99 dimensions",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQ", 3, 0, 1)
            + struct.pack("<Q", 17)
            + b"general.alignment"
            + struct.pack("<II", 4, 3),
            "alignment is 3",
        ),
        (b"", "truncated"),
    ],
)
def test_invalid_headers_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(StoreError, match=reason):
        read_header(path)


def test_an_unknown_tensor_type_is_shown_by_its_number(tmp_path: Path) -> None:
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 32, 999, 0)
    path = tmp_path / "new.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(64))
    assert read_header(path).tensors[0].type == "type 999"


def test_a_missing_file_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(StoreError, match="it is not a file"):
        read_header(tmp_path)


def read_or_refuse(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        header = read_header(path)
    except StoreError:
        return
    for value in header.values.values():
        if isinstance(value, LongArray):
            assert len(value.values()) == len(value)


@given(data=st.binary(max_size=200), n_tensors=st.integers(0, 3), n_values=st.integers(0, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_random_bytes_are_read_or_refused(
    tmp_path: Path, data: bytes, n_tensors: int, n_values: int
) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values)
    read_or_refuse(tmp_path / "random.gguf", header + data)


@given(
    edits=st.lists(st.tuples(st.integers(0, 9000), st.binary(min_size=1, max_size=9)), max_size=4),
    cut=st.none() | st.integers(0, 12_000),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_mutated_file_is_read_or_refused(
    tmp_path: Path, good_bytes: bytes, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(good_bytes)
    for position, patch in edits:
        data[position : position + len(patch)] = patch
    read_or_refuse(tmp_path / "mutated.gguf", bytes(data[:cut]))
