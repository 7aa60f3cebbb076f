"""Log probabilities look the same in every dialect."""

from __future__ import annotations

import math

import pytest

from specd.api.answer_objects import logprob_entries
from specd.core import TokenLogprob, TopLogprob


@pytest.mark.contract("logprobs.shape")
def test_entries_leave_out_empty_fields() -> None:
    top = TopLogprob(token="b", bytes=(98,), logprob=-2.0)
    assert logprob_entries(
        [
            TokenLogprob(token="a", bytes=(97,), logprob=-0.5, top=(top,)),
            TokenLogprob(token="", bytes=(), logprob=-math.inf),
        ]
    ) == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
        },
        {"token": "", "logprob": -3.4028234663852886e38},
    ]
