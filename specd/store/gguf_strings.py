"""Runs of short strings, as GGUF stores them: each behind its length in 8 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def short_string_ends(data: bytes, order: str) -> npt.NDArray[np.uint64]:
    """Where the strings at the beginning of `data` end, as long as each has less than 256 bytes.

    Seven of the eight bytes of such a length are 0, so wherever seven are a string may begin.  That
    one does is proven by those before it: the first begins at 0, and each of the others where the
    one before it ends.
    """
    import numpy as np  # noqa: PLC0415 - late: the daemon's start need not wait for it

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
