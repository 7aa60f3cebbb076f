"""Log probabilities in answers; Ollama's and OpenAI's dialects share the form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from specd.core import TokenLogprob, TopLogprob

# JSON has no infinity: a token of probability 0 is shown as llama-server shows it (−FLT_MAX).
_LOWEST: Final = -3.4028234663852886e38


def logprob_entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, object]]:
    """Return the JSON objects of the tokens.

    `bytes` is left out for an empty token, `top_logprobs` if none were requested.
    """
    return [
        _entry(chosen)
        | ({"top_logprobs": [_entry(top) for top in chosen.top]} if chosen.top else {})
        for chosen in logprobs
    ]


def _entry(token: TokenLogprob | TopLogprob) -> dict[str, object]:
    entry: dict[str, object] = {"token": token.token, "logprob": max(token.logprob, _LOWEST)}
    return entry | ({"bytes": list(token.bytes)} if token.bytes else {})
