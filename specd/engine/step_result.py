"""What the target said in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from specd.core import StopReason, TokenId, TokenLogprob


@dataclass(slots=True)
class StepResult:
    """Tokens that the target said in one pass; one that ends generation is the last, if any.

    logprobs: of the tokens whose text has left; what a stop string took back has none.
    stuck: why no further token could be had, where the grammar left none, or (is_broken) the model.
    """

    tokens: list[TokenId] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error_message: str = ""
    is_model_broken: bool = False

    @property
    def n_rows(self) -> int:
        """Rows of the pass that were used; the last of them may have given no token."""
        return len(self.tokens) + bool(self.error_message)
