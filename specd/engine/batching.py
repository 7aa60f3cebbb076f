"""One target pass for many slots: rows to verify first, then as much prompt as still fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specd.core import StopReason, TokenId, TokenLogprob
from specd.engine.backend import Batch
from specd.engine.sampler import Row
from specd.engine.slot import Slot, common_prefix

#: Second guesses for drafted tokens, by index in the draft.
Siblings = Mapping[int, TokenId]


@dataclass(slots=True)
class StepResult:
    """The tokens that one pass added to an answer, and why it ended, if it did.

    tokens: a token that ends the answer is the last.
    logprobs: of the tokens whose text was emitted; text cut by a stop string has none.
    error_message: why no further token was possible: the grammar allowed none, or
    (is_model_broken) the model computed no finite logits.
    """

    tokens: list[TokenId] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error_message: str = ""
    is_model_broken: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows of the pass that were used; the last of them may have given no token."""
        return len(self.tokens) + bool(self.error_message)


@dataclass(slots=True)
class Group:
    """A slot's rows in the pass: [last, d1 … dk], the first of them at index `first`.

    n_reevaluated: rows before these, for tokens of the answer that the cache does not hold.
    siblings: (token, index of its row) by the index of its drafted token.
    """

    slot: Slot
    draft: Sequence[TokenId]
    first: int
    n_reevaluated: int = 0
    siblings: dict[int, tuple[TokenId, int]] = field(default_factory=dict)

    @property
    def n_main_rows(self) -> int:
        """Number of rows without those of siblings."""
        return self.n_reevaluated + 1 + len(self.draft)

    def rows(self, row: Callable[[int], Row]) -> tuple[list[Row], dict[int, tuple[TokenId, Row]]]:
        """Return the computed rows in the form that `verify` takes: (rows, siblings)."""
        main_rows = [row(self.first + i) for i in range(len(self.draft) + 1)]
        return main_rows, {at: (token, row(i)) for at, (token, i) in self.siblings.items()}

    def accepted_and_kept(self, result: StepResult) -> tuple[int, int]:
        """Return the accepted positions of the draft, and the rows that the cache keeps.

        The rows [last, d1 … dk] include every emitted token but the last, so as many rows are valid
        as tokens were emitted: one less after an accepted sibling, since the cache keeps no leaf.
        """
        n_accepted = common_prefix([*self.draft], result.tokens) if self.draft else 0
        by_sibling = result.n_rows > n_accepted + 1
        return n_accepted + by_sibling, self.n_reevaluated + result.n_rows - by_sibling


@dataclass(slots=True)
class Chunk:
    """A piece of a slot's prompt.

    last_row: index of the row from which the first token is sampled; −1: not the last piece.
    """

    slot: Slot
    n_tokens: int
    last_row: int


@dataclass(slots=True)
class Pass:
    """One pass of the target.  drafted: whether time was spent on drafts, sent or not."""

    batch: Batch = field(default_factory=Batch)
    groups: list[Group] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    drafted: bool = False


class SharedPasses:
    """The usual and fastest division of a step: one pass for all slots."""

    def __init__(self, n_batch: int) -> None:
        self._n_batch = n_batch

    def passes(
        self,
        decoding: Sequence[Slot],
        drafts: Mapping[int, Sequence[TokenId]],
        prefilling: Sequence[Slot],
        siblings: Mapping[int, Siblings],
    ) -> Iterator[Pass]:
        """Yield the passes of a step.  Run each before you take the next."""
        new_pass = build_pass(decoding, drafts, prefilling, self._n_batch, siblings)
        if len(new_pass.batch):
            yield new_pass

    def record_piece(self, slot: Slot) -> None:
        """Note that the slot read one more piece of its prompt."""

    def reusable(self, slot: Slot, n: int) -> int:  # noqa: ARG002
        """Return how many of the slot's first n tokens may be taken from its cache."""
        return n


def build_pass(
    decoding: Sequence[Slot],
    drafts: Mapping[int, Sequence[TokenId]],
    prefilling: Sequence[Slot],
    n_batch: int,
    siblings: Mapping[int, Siblings] | None = None,
) -> Pass:
    """Return one pass with a group for each decoding slot; prompts share the rows that are left.

    drafts, siblings: by slot id.  A group is never split.  Waiting prompts get equal shares, the
    shortest first, so that a long one does not delay a short one.

    Rows are in order of the groups' and pieces' lengths, then of slots.  Some models need a pass
    inside for each different length, and a recurrent cache loses what it could take back if slots
    of one length change their order.
    """
    siblings = siblings or {}
    n_rows = {
        slot.id: len(slot.tokens) - slot.n_past + len(drafts.get(slot.id, ())) for slot in decoding
    }
    n_left = n_batch - sum(n_rows.values()) - sum(map(len, siblings.values()))
    waiting = sorted(prefilling, key=lambda slot: slot.n_text_ahead)
    for at, slot in enumerate(waiting):
        n_rows[slot.id] = max(min(slot.n_text_ahead, n_left // (len(waiting) - at)), 0)
        n_left -= n_rows[slot.id]
    new_pass, prompts = Pass(), {slot.id for slot in waiting}
    for slot in sorted([*decoding, *waiting], key=lambda slot: (n_rows[slot.id], slot.id)):
        if slot.id not in prompts:
            draft, leaves = drafts.get(slot.id, ()), siblings.get(slot.id, {})
            new_pass.groups.append(_add_group(new_pass.batch, slot, draft, leaves))
        elif n_rows[slot.id]:
            new_pass.chunks.append(_add_chunk(new_pass.batch, slot, n_rows[slot.id]))
    return new_pass


def _add_group(batch: Batch, slot: Slot, draft: Sequence[TokenId], siblings: Siblings) -> Group:
    last = len(slot.tokens) - 1
    for position in range(slot.n_past, last):
        batch.add(slot.tokens[position], position, slot.id, wants_logits=False)
    first = batch.add(slot.tokens[last], last, slot.id, wants_logits=True)
    for depth, token in enumerate(draft, start=1):
        batch.add(token, last + depth, slot.id, wants_logits=True)
    group = Group(slot, draft, first, last - slot.n_past)
    for at, token in sorted(siblings.items()) if siblings else ():
        group.siblings[at] = token, batch.add_leaf(token, last + 1 + at, slot.id)
    return group


def _add_chunk(batch: Batch, slot: Slot, n_tokens: int) -> Chunk:
    end = slot.n_past + n_tokens
    is_whole_prompt = end == len(slot.tokens)
    last_row = -1
    for position in range(slot.n_past, end):
        wants = is_whole_prompt and position == end - 1
        index = batch.add(slot.tokens[position], position, slot.id, wants_logits=wants)
        last_row = index if wants else last_row
    return Chunk(slot, n_tokens, last_row)
