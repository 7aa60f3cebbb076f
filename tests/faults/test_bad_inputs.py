"""Thousands of concurrent bad inputs of all kinds; `python -m tests.bad_inputs` sends more."""

from __future__ import annotations

import pytest

from tests.bad_inputs.session import KINDS, draw_inputs, send_all, split_by_key


def test_the_same_seed_draws_the_same_inputs_of_every_kind() -> None:
    inputs = draw_inputs(400, 3)
    assert inputs == draw_inputs(400, 3)
    assert inputs != draw_inputs(400, 4)
    assert len({each.kind for each in inputs}) == len(KINDS)


def test_a_quarter_goes_to_a_daemon_with_api_keys_and_half_of_it_carries_a_key() -> None:
    inputs = draw_inputs(400, 3)
    anyone, who_knows = split_by_key(inputs)
    assert anyone == inputs[:300]
    assert who_knows[1::2] == inputs[301::2]
    for sent, drew in zip(who_knows[::2], inputs[300::2], strict=True):
        for raw, before in zip(sent.requests, drew.requests, strict=True):
            assert (b"\r\nAuthorization: Bearer sk-" in raw) == (b"\r\n" in before)


@pytest.mark.native
@pytest.mark.system
@pytest.mark.timeout(500)
async def test_every_bad_input_is_answered_and_the_daemon_survives() -> None:
    found = await send_all(800, 11, lambda _: None)
    assert found.bugs == []
    assert found.is_good
    assert found.total == 800
