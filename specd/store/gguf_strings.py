"""Fast search for runs of short GGUF strings, each preceded by its length in 8 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def short_string_ends(data: bytes, order: str) -> npt.NDArray[np.uint64]:
    """Return where the leading strings of `data` end, up to the first of 256 bytes or more.

    Seven of the eight bytes of a short length are 0, so each run of seven zeros may start a string.
    It does if all strings before it are contiguous: the first starts at 0, and each other one where
    the previous one ends.
    """
    import numpy as np  # noqa: PLC0415 - late: it would slow down the daemon's start

    letters = np.frombuffer(data, np.uint8)
    one = letters == 0
    two = one[:-1] & one[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]
    low = 0 if order == "<" else 7
    starts = np.flatnonzero(seven[1:] if order == "<" else seven[:-1]).astype(np.uint64)
    ends: npt.NDArray[np.uint64] = starts + 8 + letters[low:][starts]
    if not len(starts) or starts[0] != 0:
        return ends[:0]
    broken = np.flatnonzero(starts[1:] != ends[:-1])
    return ends[: broken[0] + 1] if len(broken) else ends
