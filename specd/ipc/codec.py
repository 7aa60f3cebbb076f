"""Encodes messages as frames and back: a four-byte big-endian length, then msgpack.

No other module knows the wire format.
"""

from __future__ import annotations

import struct

import msgspec

from specd import core
from specd.ipc import messages
from specd.ipc.messages import ToDaemon, ToEngine

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 64 * 1024 * 1024  # far above any prompt: a longer frame is corrupt


class BadFrame(Exception):
    """Bytes that are not a message, or a message longer than `MAX_FRAME_BYTES`."""


class _Finished(msgspec.Struct, frozen=True, tag="Finished", array_like=True):
    """`messages.Finished` on the wire: msgspec cannot distinguish two dataclasses of a union."""

    request_id: int
    done: core.Done | None
    failed: core.Failed | None


_WireToDaemon = (
    messages.LoadProgress
    | messages.Loaded
    | messages.LoadRefused
    | messages.Started
    | messages.Tokens
    | _Finished
    | messages.Tokenized
    | messages.Detokenized
    | messages.Embedded
    | messages.PairHistoryUpdate
    | messages.Pong
)
_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_to_daemon: msgspec.msgpack.Decoder[_WireToDaemon] = msgspec.msgpack.Decoder(_WireToDaemon)


def encode(message: ToEngine | ToDaemon) -> bytes:
    """Return the frame of a message, header included.  Raises BadFrame if it is too large."""
    wire: object = message
    if isinstance(message, messages.Finished):
        event = message.event
        wire = _Finished(
            message.request_id,
            done=event if isinstance(event, core.Done) else None,
            failed=event if isinstance(event, core.Failed) else None,
        )
    body = _encoder.encode(wire)
    if len(body) > MAX_FRAME_BYTES:
        raise BadFrame(f"a message of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    # Not HEADER.pack: it is slow between two passes, when CPU caches are cold.
    return len(body).to_bytes(HEADER.size, "big") + body


def body_length(header: bytes | bytearray) -> int:
    """Return how many bytes follow a header.  Raises BadFrame if they are too many."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
    return int(length)


def decode_to_engine(body: bytes | bytearray) -> ToEngine:
    try:
        return _to_engine.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from error


def decode_to_daemon(body: bytes | bytearray) -> ToDaemon:
    try:
        wire = _to_daemon.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from error
    if not isinstance(wire, _Finished):
        return wire
    event = wire.done or wire.failed
    if event is None:
        raise BadFrame("a Finished without its event")
    return messages.Finished(wire.request_id, event)
