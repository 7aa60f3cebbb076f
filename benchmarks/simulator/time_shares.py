"""Divide the time of shared passes among requests, and compute their plain time.

Of a target pass with n requests, each is charged 1/n of a plain pass for all of them and the extra
time of its own drafted rows.  Of a drafter pass, each drafting request is charged an equal part and
the tokens read for it.  A request alone is charged all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from benchmarks.simulator.curves import Curve
from specd.engine.backend import Batch


@dataclass(slots=True)
class TimeShare:
    """The times of one request from its first token on, in nanoseconds without noise.

    taken_ns: of all passes.  plain_ns: of a plain pass of the same load for each token.
    plain_pass_ns: the most expensive of these.  n_sent: drafted tokens in the last target pass.
    has_begun: whether its prompt was read.
    """

    taken_ns: float = 0.0
    plain_ns: float = 0.0
    plain_pass_ns: float = 0.0
    n_sent: int = 0
    has_begun: bool = False
    _last_ns: float = 0.0

    def add_pass(self, plain_ns: float, added_ns: float, n_sent: int) -> None:
        """Add its part of a target pass: of the plain pass, and the cost of its n_sent tokens."""
        self.n_sent = n_sent
        self.taken_ns += plain_ns + added_ns
        self.plain_pass_ns = max(self.plain_pass_ns, plain_ns)
        self._last_ns = plain_ns

    def add_token(self) -> None:
        """Count a token of the target; the prompt's pass gives the first, at no cost here."""
        self.plain_ns += self._last_ns
        self.has_begun = True


class TimeShares:
    """The shares of all requests that one engine is answering, by slot."""

    def __init__(self, curve: Curve) -> None:
        self._target_ns = cache(curve.target_ns)
        self._draft_ns, self._read_ns = curve.draft_ns(1, 0), curve.draft_ns(0, 1)
        self._by_slot: dict[int, TimeShare] = {}
        #: Slots that read their prompts; only the last row of a prompt is charged.
        self._reading: set[int] = set()

    def open(self, slot: int) -> TimeShare:
        """Start the share of the request in that slot."""
        share = self._by_slot[slot] = TimeShare()
        return share

    def add_target_pass(self, batch: Batch) -> int:
        """Divide a pass among the slots that decode in it; return the rows that are charged.

        The extra time of a prompt is charged to its own request.
        """
        n_rows, n_again = self._rows(batch)
        n_added = {
            slot: n - 1 + n_again.get(slot, 0)
            for slot, n in n_rows.items()
            if slot in self._by_slot and self._by_slot[slot].has_begun
        }
        n_slots, n_all_added = len(n_added), sum(n_added.values())
        plain_ns, row_ns = self._target_ns(n_slots), 0.0
        if n_all_added:
            row_ns = (self._target_ns(n_slots + n_all_added) - plain_ns) / n_all_added
        for slot, n in n_added.items():
            self._by_slot[slot].add_pass(plain_ns / n_slots, row_ns * n, n_rows[slot] - 1)
        return sum(n_rows.values()) + sum(n_again.values())

    def add_drafter_pass(self, batch: Batch) -> None:
        """Divide a pass among the drafting slots; the last row of a reading slot has logits."""
        pass_ns = self._draft_ns / len(set(batch.slots))
        for slot in set(batch.slots):
            if slot in self._by_slot:
                self._by_slot[slot].taken_ns += pass_ns
        for slot, wants in zip(batch.slots, batch.wants_logits, strict=True):
            if not wants and slot in self._by_slot:
                self._by_slot[slot].taken_ns += self._read_ns

    def _rows(self, batch: Batch) -> tuple[dict[int, int], dict[int, int]]:
        """Return each slot's rows with logits, and its rows that are read again."""
        n_rows: dict[int, int] = {}
        n_again: dict[int, int] = {}
        rows = zip(batch.slots, batch.positions, batch.wants_logits, strict=True)
        for slot, position, wants in rows:
            if position == 0:
                self._reading.add(slot)
            if wants:
                self._reading.discard(slot)
                n_rows[slot] = n_rows.get(slot, 0) + 1
            elif slot not in self._reading:
                n_again[slot] = n_again.get(slot, 0) + 1
        return n_rows, n_again
