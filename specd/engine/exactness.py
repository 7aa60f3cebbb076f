"""The self-check at load: is a row the same, bit by bit, whatever else is in its pass?

That depends on the kernels of this build for this model, cache type and flash attention.  The check
compares what each layer computes (`llama/probe.py`), not the resulting tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np

from specd.core import Exactness
from specd.engine.backend import Batch
from specd.engine.sampler import Row

#: Tokens of history before the compared rows, so that attention has something to read.
N_HISTORY = 16
#: Extra slots that fill more than 256 cells, and extra tokens that do so if copies of a slot take
#: too much memory.  Kernels split a cache of 512 cells and more among threads.
N_EXTRA_SLOTS, N_EXTRA_TOKENS = 17, 256
#: Widths of pieces of a prompt; they are compared besides the widths of drafts.
PROMPT_WIDTHS = (32, 64)
#: Widths compared for a large model, besides its widest draft: kernels are known to change there.
_FEW = (2, 5)
#: Rows of a large model that are computed alone, fewer than a draft has.  Some kernels differ only
#: at every sixth row of a cache.
FEW_SINGLE_ROWS = 6
#: Slots that share a pass in the check.
MAX_SLOTS = 16
_READ_AT_ONCE = 32


class Probe(Protocol):
    """A backend of several slots whose rows hold the values to compare.

    All methods that run passes raise DecodeFailed.
    """

    n_vocab: int
    n_leaves: int

    def decode(self, batch: Batch) -> None:
        """Run one pass."""
        ...

    def row(self, index: int) -> Row: ...

    def rewind(self, slot: int, n_past: int) -> int: ...

    def save_history(self) -> None:
        """Save the cache of slot 0."""
        ...

    def restore_history(self, slots: Sequence[int]) -> None:
        """Empty the cache, then restore the saved history to each slot, in this order."""
        ...


class Depth(Enum):
    """The way to fill more than 256 cells: not at all, extra slots, or more tokens in one slot."""

    NONE = auto()
    MANY_SLOTS = auto()
    LONG_SLOT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of the self-check for one layout of the cache.

    n_invariant: rows are the same in all passes up to this width; 1 if already two rows differ.
    parallel: a slot's row is the same beside other slots, each with a row of its own.
    depth: a row alone is the same whether few or many cells are in use.
    leaves: a leaf's row is the same as that of a pass of one row; False if there are no leaves.
    """

    n_invariant: int
    parallel: bool
    depth: bool
    leaves: bool = False

    def exactness(self, longest: int, n_slots: int, n_batch: int) -> Exactness:
        """Return what is exact without SPECD_EXACT.

        longest: longest draft in tokens.  n_batch: rows of the widest pass, as used for prompts.
        """
        is_invariant = self.n_invariant >= n_batch
        return Exactness(
            speculation=self.n_invariant > longest,
            # The width of a prompt's passes depends on the other prompts read at the same time.
            parallel=n_slots == 1 or (is_invariant and self.parallel and self.depth),
            prompt_cache=is_invariant,
        )


def measure(
    probe: Probe,
    *,
    n_slots: int,
    longest: int,
    widest: int,
    depth: Depth,
    n_single_rows: int,
    thorough: bool,
    has_shared_cells: bool = True,
) -> Findings:
    """Compare rows alone with rows in passes of many widths, and beside other slots.

    widest: rows of the widest pass that is tried.
    depth: how to fill more than 256 cells.
    n_single_rows: rows that are computed alone, to be compared with those of wider passes.
    thorough: compare all widths of a draft, and the widest pass over a long cache too; otherwise
    only the few widths at which kernels are known to change.
    has_shared_cells: whether the slots share one cache, and so may lie in any order.
    Raises DecodeFailed.
    """
    probe.decode(_rows(probe, 0, N_HISTORY, 0))
    probe.save_history()
    few = sorted({width for width in (*_FEW, longest + 1, *PROMPT_WIDTHS) if width <= widest})
    widths = sorted({*few, widest, *(range(2, longest + 2) if thorough else ())})
    deep_widths = sorted({*few, widest}) if thorough else few
    expected = _single_row_passes(probe, (0,), n_single_rows)
    n_invariant = _measure_invariance(probe, widths, (0,), expected)
    leaves = _leaves_agree(probe, longest, (0,), expected)
    parallel = n_slots > 1
    if has_shared_cells and depth is not Depth.NONE:
        # Rounding of a sum over a cache depends on the order of its cells, and slots that share a
        # cache lie in any order.  A few rows may not show it, since some kernels sum in doubles.
        parallel = False
    for n_rows in (1, *(n for n in (2, longest + 1) if n <= n_invariant)):
        # Slots with drafts have several rows each, all the same number.
        n_fit = min(n_slots, MAX_SLOTS, widest // n_rows)
        parallel = parallel and _slots_agree(probe, n_fit, expected, n_rows, thorough=thorough)
    is_same_deep, n_invariant_deep = True, deep_widths[-1]
    if depth is Depth.MANY_SLOTS:
        slots = range(N_EXTRA_SLOTS + 1)
        n_deep = min(n_single_rows, FEW_SINGLE_ROWS) if n_invariant > 1 else 1
        deep = _single_row_passes(probe, slots, n_single_rows if thorough else n_deep)
        is_same_deep = _rows_equal(expected, deep)
        n_invariant_deep = _measure_invariance(probe, deep_widths, slots, deep)
        leaves = leaves and _leaves_agree(probe, longest, slots, deep)
    elif depth is Depth.LONG_SLOT:
        _extend_history(probe)
        deep = _single_row_passes(probe, (0,), n_single_rows, N_EXTRA_TOKENS)
        n_invariant_deep = _measure_invariance(probe, deep_widths, (0,), deep, N_EXTRA_TOKENS)
        # These are other rows than before, so only their invariance can be compared.
        is_same_deep = min(n_invariant, n_invariant_deep) > 1
    if n_invariant_deep < deep_widths[-1]:
        n_invariant = min(n_invariant, n_invariant_deep)
    return Findings(n_invariant=n_invariant, parallel=parallel, depth=is_same_deep, leaves=leaves)


def _extend_history(probe: Probe) -> None:
    """Make the history longer by N_EXTRA_TOKENS tokens."""
    probe.restore_history((0,))
    for begin in range(N_HISTORY, N_HISTORY + N_EXTRA_TOKENS, _READ_AT_ONCE):
        probe.decode(_rows(probe, begin, _READ_AT_ONCE, 0))
    probe.save_history()


def _measure_invariance(
    probe: Probe,
    widths: Sequence[int],
    slots: Sequence[int],
    expected: Sequence[Row],
    deeper: int = 0,
) -> int:
    """Return the width up to which all passes give the expected rows.

    deeper: additional tokens of history.
    """
    n_invariant = 1
    for width in widths:
        probe.restore_history(slots)
        probe.decode(_rows(probe, N_HISTORY + deeper, width, min(width, len(expected))))
        if not _rows_equal(expected, [probe.row(i) for i in range(min(width, len(expected)))]):
            break
        n_invariant = width
    return n_invariant


def _leaves_agree(
    probe: Probe, longest: int, slots: Sequence[int], expected: Sequence[Row]
) -> bool:
    """Return whether the first and last leaf that fit beside a draft have the expected rows."""
    n_most = min(len(expected), longest - 1) - 1
    depths = sorted({1, n_most})[: probe.n_leaves] if n_most > 0 else []
    probe.restore_history(slots)
    batch = _rows(probe, N_HISTORY, longest + 1 - len(depths), len(expected))
    leaves = [batch.add_leaf(batch.tokens[d], N_HISTORY + d, 0) for d in depths]
    if not leaves:
        return False
    probe.decode(batch)
    return _rows_equal([expected[d] for d in depths], [probe.row(index) for index in leaves])


def _single_row_passes(probe: Probe, slots: Sequence[int], n: int, deeper: int = 0) -> list[Row]:
    """Return n rows of slot 0, each from its own pass, while all `slots` hold the history."""
    probe.restore_history(slots)
    single_rows = []
    for i in range(n):
        probe.decode(_rows(probe, N_HISTORY + deeper + i, 1, 1))
        single_rows.append(probe.row(0).copy())
    return single_rows


def _slots_agree(
    probe: Probe, n_slots: int, expected: Sequence[Row], n_rows: int, *, thorough: bool
) -> bool:
    """Return whether a slot's rows are the same with n_rows of each other slot in the pass."""
    n_compared = min(n_rows, len(expected))
    for n in range(2, n_slots + 1) if thorough else {2, n_slots} - {0, 1}:
        for probed in {0, n - 1}:
            probe.restore_history(range(n))
            batch = Batch()
            for slot in range(n):
                for i in range(n_rows):
                    wants = i < n_compared and slot == probed
                    own = slot != probed
                    _add(probe, batch, slot, N_HISTORY + i, own=own, wants_logits=wants)
            probe.decode(batch)
            rows = [probe.row(probed * n_rows + i) for i in range(n_compared)]
            if not _rows_equal(expected, rows):
                return False
    return True


def _rows(probe: Probe, begin: int, n: int, n_wanted: int) -> Batch:
    """Return a batch of n tokens of slot 0; the first n_wanted have logits; 0: only the last."""
    batch = Batch()
    for i in range(n):
        wanted = i < n_wanted or (n_wanted == 0 and i == n - 1)
        _add(probe, batch, 0, begin + i, wants_logits=wanted)
    return batch


def _add(
    probe: Probe,
    batch: Batch,
    slot: int,
    position: int,
    *,
    own: bool = False,
    wants_logits: bool = True,
) -> None:
    """Append a row.  own: use a token that differs from the probed slot's."""
    token = (7 * position + 3 + 11 * own * (slot + 1)) % probe.n_vocab
    batch.add(token, position, slot, wants_logits=wants_logits)


def _rows_equal(a: Sequence[Row], b: Sequence[Row]) -> bool:
    """Return whether the rows that both have are equal, bit by bit."""
    pairs = zip(a, b, strict=False)
    return all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in pairs)
