"""Runs of short strings, as GGUF stores them: each behind its length in 8 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def short_strings(data: bytes, order: str) -> npt.NDArray[np.uint64]:
    """Where the strings at the beginning of `data` end, as long as each has less than 256 bytes.

    Wherever a word of 8 bytes is below 256 a string may begin.  That one does is proven by those
    before it: the first begins at 0, and each of the others where the one before it ends.
    """
    import numpy as np  # noqa: PLC0415 - late: the daemon's start need not wait for it

    begins = np.zeros(len(data), np.bool_)
    for at in range(min(8, len(data) - 7)):
        words = np.frombuffer(data, f"{order}u8", (len(data) - at) // 8, at)
        begins[at : at + 8 * len(words) : 8] = words < 256
    starts = np.flatnonzero(begins).astype(np.uint64)
    length_at = starts + np.uint64(0 if order == "<" else 7)
    ends: npt.NDArray[np.uint64] = starts + 8 + np.frombuffer(data, np.uint8)[length_at]
    if not len(starts) or starts[0] != 0:
        return ends[:0]
    broken = np.flatnonzero(starts[1:] != ends[:-1])
    return ends[: broken[0] + 1] if len(broken) else ends
