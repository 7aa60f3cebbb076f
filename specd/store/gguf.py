"""Reader of a GGUF file's header: metadata and tensor descriptions, no tensor data.

It replaces the gguf package's GGUFReader, which makes four numpy objects per array element (7.7 s
for 128,000 tokens and 256,000 merges) and does not notice a truncated file.  This reader uses plain
reads, because a memory map kills the process when the file is truncated.  It checks every count
against the file's size, and raises only StoreError.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

from specd.errors import StoreError
from specd.store import safe_files
from specd.store.gguf_strings import short_string_ends
from specd.store.tensor_types import TensorType, tensor_types

LONG_ARRAY: Final = 1024
"""Arrays with more elements stay undecoded until used; Ollama hides the same arrays."""

MULTIMODAL_PREFIXES: Final = ("v.", "a.", "mm.")
"""Name prefixes of tensors for images and sounds, which text tokens do not use."""

#: Ten times the size of the largest known vocabularies.
MAX_HEADER_BYTES: Final = 1 << 28
_MAX_ELEMENTS: Final = 1 << 22
#: Limit for values and for tensors; each takes hundreds of bytes of memory.
MAX_ENTRIES: Final = 1 << 17
#: Limit for the elements of all arrays that are decoded at once.
_MAX_DECODED: Final = 1 << 20
_MAX_DEPTH: Final = 4
_FIRST_READ: Final = 1 << 20


class ValueType(IntEnum):
    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_CODES: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_N_BYTES: Final = {code: struct.calcsize("<" + code) for code in _CODES.values()}


@dataclass(frozen=True, slots=True)
class LongArray:
    """Array of more than LONG_ARRAY elements, decoded element by element on use.

    raw: the elements as stored.  ends: offset in `raw` at which each string ends; None for numbers.
    code: struct's letters for one element, or for a string's length.
    """

    raw: bytes
    code: str
    ends: array[int] | None = None

    def __len__(self) -> int:
        return len(self.raw) // struct.calcsize(self.code) if self.ends is None else len(self.ends)

    def __getitem__(self, index: int) -> int | float | str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self.ends is None:
            number: int | float
            (number,) = struct.unpack_from(self.code, self.raw, index * struct.calcsize(self.code))
            return number
        start = self.ends[index - 1] if index else 0
        return self.raw[start + 8 : self.ends[index]].decode("utf-8", "replace")

    def values(self) -> tuple[int | float | str, ...]:
        if self.ends is None:
            return tuple(number for (number,) in struct.iter_unpack(self.code, self.raw))
        starts = [0, *self.ends][:-1]
        return tuple(
            self.raw[start + 8 : end].decode("utf-8", "replace")
            for start, end in zip(starts, self.ends, strict=True)
        )


Value = int | float | bool | str | tuple["Value", ...] | LongArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Description of one tensor.

    type: ggml's name, such as Q4_K.  shape: elements per dimension, fastest first, as stored.
    n_bytes: size of its data; 0 if the type is unknown.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor descriptions of one file.

    values: by full key, in the file's order.
    """

    path: Path
    values: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def parameter_count(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else default

    def integer(self, key: str, default: int = 0) -> int:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    def arch_integer(self, key: str, default: int = 0) -> int:
        """Return the integer at `<architecture>.<key>`, such as context_length."""
        return self.integer(f"{self.architecture}.{key}", default)

    def arch_integers(self, key: str) -> tuple[int, ...]:
        """Return one integer for all layers, or one per layer; empty if the key is missing."""
        value = self.values.get(f"{self.architecture}.{key}")
        items = value.values() if isinstance(value, LongArray) else value
        found = items if isinstance(items, tuple) else (items,)
        return tuple(n for n in found if isinstance(n, int) and not isinstance(n, bool))

    def strings(self, key: str) -> tuple[str, ...]:
        """Return an array of strings; empty if it is missing or has another type."""
        value = self.values.get(key)
        items = value.values() if isinstance(value, LongArray) else value
        if not isinstance(items, tuple):
            return ()
        return tuple(item for item in items if isinstance(item, str))

    def token(self, id_key: str) -> str:
        """Return the text of the token whose id is stored at `id_key`; empty if there is none."""
        tokens, index = self.values.get("tokenizer.ggml.tokens"), self.integer(id_key, -1)
        if not isinstance(tokens, LongArray | tuple) or not 0 <= index < len(tokens):
            return ""
        text = tokens[index]
        return text if isinstance(text, str) else ""


def read_header(path: Path) -> GgufHeader:
    """Read a file's header.  Raises StoreError, which names the file and the reason."""
    try:
        with safe_files.to_store_errors(f"read {path}"), safe_files.open_regular_file(path) as file:
            return _Reader(path, file).read()
    except _DamagedError as damage:
        raise StoreError(f"{path} is not a usable GGUF file: {damage}") from damage


class _DamagedError(Exception):
    pass


class _Reader:
    """Sequential parser of a header, which reads the file in steps that double in size."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._data = b""
        self._offset = 0
        self._order = "<"
        self._n_decoded = 0

    def read(self) -> GgufHeader:
        n_tensors, n_values = self._preamble()
        values: dict[str, Value] = {}
        for _ in range(n_values):
            key = self._string()
            if key in values:
                raise _DamagedError(f"the key {key!r} occurs twice")
            values[key] = self._value(self._type(), 0)
        tensors: dict[str, tuple[TensorInfo, int]] = {}
        for _ in range(n_tensors):
            info, end = self._tensor()
            if info.name in tensors:
                raise _DamagedError(f"the tensor {info.name!r} occurs twice")
            tensors[info.name] = info, end
        self._check_data(values, [end for _, end in tensors.values()])
        return GgufHeader(self._path, values, tuple(info for info, _ in tensors.values()))

    def _preamble(self) -> tuple[int, int]:
        if self._take(4) != b"GGUF":
            raise _DamagedError("it does not start with the letters GGUF")
        version = self._number("I")
        if version and not version & 0xFFFF:  # the bytes are reversed: a big-endian file
            self._order = ">"
            self._offset -= 4
            version = self._number("I")
        if version not in {2, 3}:
            raise _DamagedError(f"its version is {version}; specd reads versions 2 and 3")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        # The smallest tensor description has 24 bytes, the smallest key and value 13.
        if n_tensors * 24 + n_values * 13 > self._size:
            raise _DamagedError(
                f"it declares {n_values} values and {n_tensors} tensors,"
                f" more than its {self._size} bytes can hold"
            )
        if max(n_tensors, n_values) > MAX_ENTRIES:
            raise _DamagedError(f"it has {n_values} values and {n_tensors} tensors")
        return n_tensors, n_values

    # ------------------------------------------------------------------ values

    def _type(self) -> ValueType:
        number = self._number("I")
        try:
            return ValueType(number)
        except ValueError:
            raise _DamagedError(f"it has a value of the unknown type {number}") from None

    def _value(self, kind: ValueType, depth: int) -> Value:
        if kind is ValueType.STRING:
            return self._string()
        if kind is ValueType.ARRAY:
            return self._array(depth)
        if kind is ValueType.BOOL:
            return self._number("B") != 0
        code = self._order + _CODES[kind]
        value: int | float = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _array(self, depth: int) -> Value:
        kind, n = self._type(), self._number("Q")
        if n > _MAX_ELEMENTS:
            raise _DamagedError(f"it has an array of {n} elements")
        if n <= LONG_ARRAY or kind is ValueType.ARRAY:
            self._n_decoded += n
        if self._n_decoded > _MAX_DECODED:
            raise _DamagedError(f"its arrays have more than {_MAX_DECODED} elements")
        if kind is ValueType.STRING:
            strings = self._strings(n)
            return strings if n > LONG_ARRAY else strings.values()
        if kind is ValueType.ARRAY:
            if depth == _MAX_DEPTH:
                raise _DamagedError("its arrays are nested too deeply")
            self._require_bytes(n * 12)
            return tuple(self._array(depth + 1) for _ in range(n))
        code = self._order + _CODES[kind]
        numbers = LongArray(self._take(n * struct.calcsize(code)), code)
        if n > LONG_ARRAY:
            return numbers
        values = numbers.values()
        return tuple(map(bool, values)) if kind is ValueType.BOOL else values

    def _strings(self, n: int) -> LongArray:
        ends = self._string_ends(n)
        raw = self._take(ends[-1] if n else 0)
        return LongArray(raw, self._order + "Q", ends)

    def _string_ends(self, n: int) -> array[int]:
        """Return where each of the next n strings ends, in bytes from the start of the first.

        A vocabulary has hundreds of thousands of strings, so runs of short strings are found with
        numpy; only the strings between runs are scanned one by one.
        """
        self._require_bytes(n * 8)
        ends, start, window = array("Q"), self._offset, _FIRST_WINDOW
        while len(ends) < n:
            end = start + (ends[-1] if ends else 0)
            self._fetch(end + 8)
            found = short_string_ends(self._data[end : end + window], self._order)[: n - len(ends)]
            if len(found) < _MIN_RUN:
                self._scan_strings(ends, min(n, len(ends) + _MIN_RUN), start)
                window = _LEAST_WINDOW
                continue
            if end + int(found[-1]) > self._size:
                raise _DamagedError(_CUT_SHORT)
            ends.frombytes((found + (end - start)).tobytes())
            window = min(2 * window, _MOST_WINDOW)
        return ends

    def _scan_strings(self, ends: array[int], n: int, start: int) -> None:
        """Extend `ends` to n entries, one string at a time."""
        unpack = struct.Struct(self._order + "Q").unpack_from
        end = start + (ends[-1] if ends else 0)
        while len(ends) < n:
            self._fetch(end + 8)
            end += 8 + unpack(self._data, end)[0]
            if end > self._size:
                raise _DamagedError(_CUT_SHORT)
            ends.append(end - start)

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    # ----------------------------------------------------------------- tensors

    def _tensor(self) -> tuple[TensorInfo, int]:
        """Return a tensor's description, and where its data ends after the header, in bytes."""
        name = self._string()
        n_dimensions = self._number("I")
        if n_dimensions > 8:
            raise _DamagedError(f"the tensor {name!r} has {n_dimensions} dimensions")
        code = f"{self._order}{n_dimensions}QIQ"
        *shape, number, offset = struct.unpack(code, self._take(8 * n_dimensions + 12))
        kind = tensor_types().get(number, TensorType(f"type {number}", 1, 0))
        n_bytes = math.prod(shape) // kind.n_elements * kind.n_bytes
        return TensorInfo(name, kind.name, tuple(shape), n_bytes), offset + n_bytes

    def _check_data(self, values: Mapping[str, Value], ends: list[int]) -> None:
        """Raise _DamagedError if the file is too short for the data of all tensors."""
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _DamagedError(f"its alignment is {alignment!r}, not a power of two")
        start = -(-self._offset // alignment) * alignment
        if ends and start + max(ends) > self._size:
            raise _DamagedError(_CUT_SHORT)

    # ------------------------------------------------------------------- bytes

    def _number(self, code: str) -> int:
        number: int = struct.unpack(self._order + code, self._take(_N_BYTES[code]))[0]
        return number

    def _take(self, n: int) -> bytes:
        end = self._offset + n
        if end > len(self._data):
            self._require_bytes(n)
            self._fetch(end)
        taken = self._data[self._offset : end]
        self._offset = end
        return taken

    def _require_bytes(self, n: int) -> None:
        """Raise _DamagedError if fewer than n bytes follow in the file."""
        if self._offset + n > self._size:
            raise _DamagedError(_CUT_SHORT)

    def _fetch(self, end: int) -> None:
        """Read the file into memory up to the offset `end`."""
        if end <= len(self._data):
            return
        if end > min(self._size, MAX_HEADER_BYTES):
            raise _DamagedError(_CUT_SHORT)
        n_bytes = max(end, 2 * len(self._data), _FIRST_READ)
        self._data += self._file.read(n_bytes - len(self._data))
        if end > len(self._data):
            raise _DamagedError(_CUT_SHORT)


_CUT_SHORT: Final = "it is truncated"
#: A run of fewer strings than this is scanned one by one.
_MIN_RUN: Final = 64
#: Bytes searched for a run: doubled while the run goes on, reset when it breaks.
_LEAST_WINDOW, _FIRST_WINDOW, _MOST_WINDOW = 1 << 12, 1 << 16, 1 << 20
