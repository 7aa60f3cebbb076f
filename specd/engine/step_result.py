"""The result of one pass for one slot."""

from __future__ import annotations

from dataclasses import dataclass, field

from specd.core import StopReason, TokenId, TokenLogprob


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
