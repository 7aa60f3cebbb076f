"""The header of a GGUF file: metadata and tensor descriptions, never tensor data.

A reader of our own, because the gguf package's GGUFReader makes four numpy objects per array
element (7.7 s for a vocabulary of 128,000 tokens and 256,000 merges) and does not notice the end of
a truncated file.  This one reads plain bytes (no memory map: a file cut short under a map kills the
process), believes no count before the bytes are there, and fails with StoreError alone.
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
from specd.store import safe_open
from specd.store.gguf_strings import short_string_ends
from specd.store.tensor_types import TensorType, tensor_types

LONG_ARRAY: Final = 1024
"""Arrays with more elements stay undecoded until they are used; Ollama hides the same ones."""

MULTIMODAL_PREFIXES: Final = ("v.", "a.", "mm.")
"""How the tensors for images and sounds are called: no token of a text meets them."""

#: Ten times the largest vocabularies there are.
MAX_HEADER_BYTES: Final = 1 << 28
_MAX_ELEMENTS: Final = 1 << 22
#: Of values and of tensors; each takes some hundred bytes, however few it has in the file.
MAX_ENTRIES: Final = 1 << 17
#: Elements of all arrays that are decoded at once.
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
    """An array of more than LONG_ARRAY elements, decoded element by element on use.

    raw: the elements as stored.  ends: where each string ends in `raw`; None for numbers.
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
    """type: ggml's name, such as Q4_K.  shape: elements per dimension, fastest first, as stored.

    n_bytes: of its data; 0 where the type is not known.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """values: by full key, in the file's order."""

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
        """An integer below the architecture's prefix, such as context_length."""
        return self.integer(f"{self.architecture}.{key}", default)

    def arch_integers(self, key: str) -> tuple[int, ...]:
        """What may be one integer for all layers, or an array with one for each."""
        value = self.values.get(f"{self.architecture}.{key}")
        items = value.values() if isinstance(value, LongArray) else value
        found = items if isinstance(items, tuple) else (items,)
        return tuple(n for n in found if isinstance(n, int) and not isinstance(n, bool))

    def strings(self, key: str) -> tuple[str, ...]:
        """An array of strings; empty where it is missing or of another type."""
        value = self.values.get(key)
        items = value.values() if isinstance(value, LongArray) else value
        if not isinstance(items, tuple):
            return ()
        return tuple(item for item in items if isinstance(item, str))

    def token(self, id_key: str) -> str:
        """The text of the token whose id stands under that key; empty where there is none."""
        tokens, index = self.values.get("tokenizer.ggml.tokens"), self.integer(id_key, -1)
        if not isinstance(tokens, LongArray | tuple) or not 0 <= index < len(tokens):
            return ""
        text = tokens[index]
        return text if isinstance(text, str) else ""


def read_header(path: Path) -> GgufHeader:
    """Read a file's metadata; raises StoreError with a sentence naming the file and the reason."""
    try:
        with safe_open.open_regular_file(path) as file:
            return _Reader(path, file).read()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except _DamagedError as damage:
        raise StoreError(f"{path} is not a usable GGUF file: {damage}") from damage


class _DamagedError(Exception):
    pass


class _Reader:
    """Walks the header from its first byte, reading the file in doubling steps."""

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
        if version and not version & 0xFFFF:  # the bytes of the other end: a big-endian file
            self._order = ">"
            self._offset -= 4
            version = self._number("I")
        if version not in {2, 3}:
            raise _DamagedError(f"its version is {version}, and only 2 and 3 are understood")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        # The smallest tensor description has 24 bytes, the smallest key and value 13.
        if n_tensors * 24 + n_values * 13 > self._size:
            raise _DamagedError(
                f"it promises {n_values} values and {n_tensors} tensors,"
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
        """Where each of the next n strings ends, counted from the first one's beginning.

        One after the other is hundreds of thousands of rounds for one vocabulary: runs of short
        strings are found at once, and walked only where something else lies between them.
        """
        self._require_bytes(n * 8)
        ends, start, window = array("Q"), self._offset, _FIRST_WINDOW
        while len(ends) < n:
            end = start + (ends[-1] if ends else 0)
            self._fetch(end + 8)
            found = short_string_ends(self._data[end : end + window], self._order)[: n - len(ends)]
            if len(found) < _WALK:
                self._scan_strings(ends, min(n, len(ends) + _WALK), start)
                window = _LEAST_WINDOW
                continue
            if end + int(found[-1]) > self._size:
                raise _DamagedError(_CUT_SHORT)
            ends.frombytes((found + (end - start)).tobytes())
            window = min(2 * window, _MOST_WINDOW)
        return ends

    def _scan_strings(self, ends: array[int], n: int, start: int) -> None:
        """One string after the other, until there are n."""
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
        """A tensor's description, and where its data ends behind the header."""
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
        """Whether the file is long enough for the data of all tensors."""
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
        """Refuse before reading what the file cannot hold."""
        if self._offset + n > self._size:
            raise _DamagedError(_CUT_SHORT)

    def _fetch(self, end: int) -> None:
        """Have the bytes up to `end` in memory."""
        if end <= len(self._data):
            return
        if end > min(self._size, MAX_HEADER_BYTES):
            raise _DamagedError(_CUT_SHORT)
        wanted = max(end, 2 * len(self._data), _FIRST_READ)
        self._data += self._file.read(wanted - len(self._data))
        if end > len(self._data):
            raise _DamagedError(_CUT_SHORT)


_CUT_SHORT: Final = "it is cut short"
#: Fewer strings in a run than this are walked.
_WALK: Final = 64
#: Bytes in which a run is looked for: more while there is one, few after it broke.
_LEAST_WINDOW, _FIRST_WINDOW, _MOST_WINDOW = 1 << 12, 1 << 16, 1 << 20
