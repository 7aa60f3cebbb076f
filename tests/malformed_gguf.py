"""Make malformed GGUF files: parse a valid one, change some of its parts, write it again."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Final

# GGUF's numbers of value types.
UINT8, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = (
    *(0, 4, 5, 6, 7, 8, 9, 10, 11, 12),
)
_WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
#: Counts, lengths and offsets that readers often handle wrongly.
EDGE_VALUES: Final = (
    *(0, 1, 2, 7, 8, 31, 32, 255, 256, 1023, 1024, 1025, 65535, 65536, 2**24, 2**31 - 1, 2**31),
    *(2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8, 2**64 - 32),
)
_WORDS: Final = (
    *(b"", b"\0", b"\xff\xfe", b"llama", b"mamba", b"bert", b"clip", b"gemma3n", b"t5", b"qwen35"),
    *(b"../../../etc/passwd", b"%s%n%x", b"{{ 9 ** 9 ** 9 }}", b"{% for %}", b"A" * 5000),
    *("é\u202e\ud7ff".encode(), b"NaN", b"1" * 400, b"blk.99999999999.x", b"blk.-1.attn_q.weight"),
)


@dataclass
class Value:
    """A metadata value; `data` are the bytes stored after the type's number."""

    key: bytes
    type: int
    data: bytes


@dataclass
class Tensor:
    name: bytes
    shape: list[int]
    type: int
    offset: int


@dataclass
class Parts:
    """The parts of a file.  n_values, n_tensors: counts in the preamble; None is the true count."""

    values: list[Value] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_values: int | None = None
    n_tensors: int | None = None

    def write(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_values = len(self.values) if self.n_values is None else self.n_values
        out = bytearray(self.magic + struct.pack("<IQQ", self.version, n_tensors, n_values))
        for value in self.values:
            out += text(value.key) + struct.pack("<I", value.type) + value.data
        for tensor in self.tensors:
            out += text(tensor.name) + struct.pack("<I", len(tensor.shape))
            out += b"".join(struct.pack("<Q", n % 2**64) for n in tensor.shape)
            out += struct.pack("<IQ", tensor.type % 2**32, tensor.offset % 2**64)
        return bytes(out + bytes(-len(out) % 32) + self.data)

    def set(self, key: bytes, type_: int, data: bytes) -> None:
        self.values = [value for value in self.values if value.key != key]
        self.values.append(Value(key, type_, data))


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def take_apart(raw: bytes) -> Parts:
    """Parse a valid little-endian file whose data begins at the first multiple of 32."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        at += n
        return raw[at - n : at]

    def number(code: str) -> int:
        return int(struct.unpack("<" + code, take(struct.calcsize(code)))[0])

    def payload(kind: int) -> bytes:
        start = at
        if kind == STRING:
            take(number("Q"))
        elif kind == ARRAY:
            inner, n = number("I"), number("Q")
            for _ in range(n):
                payload(inner)
        else:
            take(_WIDTHS[kind])
        return raw[start:at]

    magic, version = take(4), number("I")
    n_tensors, n_values = number("Q"), number("Q")
    parts = Parts(magic=magic, version=version)
    for _ in range(n_values):
        key, kind = take(number("Q")), number("I")
        parts.values.append(Value(key, kind, payload(kind)))
    for _ in range(n_tensors):
        name, n = take(number("Q")), number("I")
        shape = [number("Q") for _ in range(n)]
        parts.tensors.append(Tensor(name, shape, number("I"), number("Q")))
    parts.data = raw[at + -at % 32 :]
    return parts


# --------------------------------------------------------------------------- mutations


def mutate_gguf(raw: bytes, draw: random.Random) -> bytes:
    """Return a valid file with one to three changes of its structure, sometimes of its bytes."""
    parts = take_apart(raw)
    for _ in range(draw.randint(1, 3)):
        draw.choice(_LIES)(parts, draw)
    data = bytearray(parts.write())
    if draw.random() < 0.25:
        _spoil(data, draw)
    return bytes(data)


def _spoil(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    match draw.randrange(3):
        case 0:
            del data[at:]
        case 1:
            data[at : at + 8] = struct.pack("<Q", draw.choice(EDGE_VALUES))
        case _:
            data[at] ^= 1 << draw.randrange(8)


def _count(parts: Parts, draw: random.Random) -> None:
    if draw.random() < 0.5:
        parts.n_values = draw.choice(
            (len(parts.values) + draw.randint(-3, 3), draw.choice(EDGE_VALUES))
        )
        parts.n_values %= 2**64
    else:
        parts.n_tensors = draw.choice((max(len(parts.tensors) - 1, 0), draw.choice(EDGE_VALUES)))


def _number(parts: Parts, draw: random.Random) -> None:
    """Replace a value by a number of any type and width."""
    value = draw.choice(parts.values)
    wide = draw.choice(EDGE_VALUES)
    kind = draw.choice((UINT8, UINT32, INT32, FLOAT32, BOOL, UINT64, INT64, FLOAT64))
    data = struct.pack("<Q", wide)[: _WIDTHS[kind]]
    if kind in {FLOAT32, FLOAT64} and draw.random() < 0.5:
        number = draw.choice((float("nan"), float("inf"), -1.0, 1e300, 1e-320))
        data = struct.pack("<d", number)
        if kind == FLOAT32:
            data = struct.pack("<f", draw.choice((float("nan"), float("-inf"), -0.0)))
    value.type, value.data = kind, data


def _array(parts: Parts, draw: random.Random) -> None:
    """Replace a value by an array, by one with a wrong length, or by nested arrays."""
    value = draw.choice(parts.values)
    inner = draw.choice((UINT8, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, 99))
    n = draw.choice((0, 1, 5, draw.choice(EDGE_VALUES)))
    data = struct.pack("<IQ", inner, n)
    if inner == ARRAY:
        data = struct.pack("<IQ", ARRAY, 1) * draw.randint(1, 8) + struct.pack("<IQI", 4, 1, 7)
    elif n <= 5 and inner in _WIDTHS:
        data += draw.randbytes(n * _WIDTHS[inner])
    elif n <= 5 and inner == STRING:
        data += b"".join(text(draw.choice(_WORDS)) for _ in range(n))
    value.type, value.data = ARRAY, data


def _words(parts: Parts, draw: random.Random) -> None:
    value = draw.choice(parts.values)
    value.type, value.data = STRING, text(draw.choice(_WORDS))


def _length(parts: Parts, draw: random.Random) -> None:
    texts = [value for value in parts.values if value.type == STRING]
    if texts:
        draw.choice(texts).data = struct.pack("<Q", draw.choice(EDGE_VALUES))


def _key(parts: Parts, draw: random.Random) -> None:
    value = draw.choice(parts.values)
    match draw.randrange(4):
        case 0:
            value.key = draw.choice(_WORDS)
        case 1:
            value.key = draw.choice(parts.values).key
        case 2:
            parts.values.remove(value)
            parts.values = parts.values or [Value(b"general.name", STRING, text(b"x"))]
        case _:
            value.type = draw.choice((13, 14, 255, 2**31, 9, 8))


def _architecture(parts: Parts, draw: random.Random) -> None:
    parts.set(b"general.architecture", STRING, text(draw.choice(_WORDS)))


def _alignment(parts: Parts, draw: random.Random) -> None:
    parts.set(b"general.alignment", UINT32, struct.pack("<I", draw.choice(EDGE_VALUES) % 2**32))


def _shape(parts: Parts, draw: random.Random) -> None:
    if parts.tensors:
        tensor = draw.choice(parts.tensors)
        tensor.shape = [
            draw.choice(EDGE_VALUES) for _ in range(draw.choice((0, 1, 2, 4, 5, 8, 9, 70)))
        ]


def _tensor(parts: Parts, draw: random.Random) -> None:
    if not parts.tensors:
        return
    tensor = draw.choice(parts.tensors)
    match draw.randrange(5):
        case 0:
            tensor.name = draw.choice((*_WORDS, draw.choice(parts.tensors).name))
        case 1:
            tensor.type = draw.choice((*range(42), 99, 2**31, 2**32 - 1))
        case 2:
            tensor.offset = draw.choice((tensor.offset + 1, *EDGE_VALUES))
        case 3:
            parts.tensors.remove(tensor)
        case _:
            tensor.name = b"blk." + b"9" * draw.choice((1, 5, 20, 400, 5000)) + b".ffn_down.weight"


def _data(parts: Parts, draw: random.Random) -> None:
    match draw.randrange(3):
        case 0:
            parts.data = parts.data[: draw.randrange(len(parts.data) + 1)]
        case 1:
            parts.data = b""
        case _:
            parts.data = draw.randbytes(min(len(parts.data), 4096)) + parts.data[4096:]


def _preamble(parts: Parts, draw: random.Random) -> None:
    if draw.random() < 0.5:
        parts.version = draw.choice((0, 1, 2, 4, 0x03000000, 2**32 - 1))
    else:
        parts.magic = draw.choice((b"GGML", b"FUGG", b"\0\0\0\0", b"PK\3\4"))


_LIES: Final = (
    *(_number, _number, _array, _array, _words, _length, _key, _shape, _tensor, _tensor),
    *(_count, _architecture, _alignment, _data, _preamble),
)
