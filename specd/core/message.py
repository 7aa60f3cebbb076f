"""One turn of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def is_audio(data: bytes) -> bool:
    """Return whether the file is WAV, FLAC, or MP3 by its tag or first frame."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WAVE"
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0
    return data.startswith((b"ID3", b"fLaC")) or is_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function, written by the model.

    arguments: a JSON object; its keys keep the model's order.  index: its position in the answer.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    id: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat.

    role: lower-case, not checked further.
    images: files as sent (PNG, JPEG, ..., audio); the prompt has them in the places of `[img]` in
    the content, or before it.
    """

    role: str
    content: str = ""
    thinking: str = ""
    images: tuple[bytes, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""
