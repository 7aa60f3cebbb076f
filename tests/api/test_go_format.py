"""Values on the wire look as Go writes them."""

from __future__ import annotations

import datetime as dt
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.api.go_format import expiry_time, go_quote, local_time, omit_empty, utc_time
from specd.go_json_encoder import dump_json


@pytest.mark.contract("body.escapes")
def test_json_is_compact_ordered_and_escaped_as_go_does() -> None:
    assert dump_json({"b": "<é&\u2028>", "a": 1.5}) == (
        b'{"b":"\\u003c\xc3\xa9\\u0026\\u2028\\u003e","a":1.5}'
    )


def test_half_a_surrogate_pair_does_not_break_a_response() -> None:
    assert json.loads(dump_json("\ud800")) == "?"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_has_no_infinity(value: float) -> None:
    with pytest.raises(ValueError):
        dump_json(value)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_escaped_text_is_the_same_text(text: str) -> None:
    assert json.loads(dump_json(text)) == text


@pytest.mark.contract("answer.times")
def test_utc_times_have_nanoseconds_without_trailing_zeros() -> None:
    assert utc_time(1_785_585_600_000_000_120) == "2026-08-01T12:00:00.00000012Z"
    assert utc_time(1_785_585_600_000_000_000) == "2026-08-01T12:00:00Z"


@pytest.mark.contract("answer.times")
def test_local_times_carry_their_offset_and_parse_back() -> None:
    moment = dt.datetime(2026, 8, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
    assert ".25" in local_time(moment)
    assert dt.datetime.fromisoformat(local_time(moment)) == moment


@pytest.mark.contract("keep-alive.forever")
def test_for_ever_is_292_years_from_now() -> None:
    now_ns = 1_785_585_600 * 10**9
    assert expiry_time(math.inf, now_ns)[:4] == "2318"
    assert dt.datetime.fromisoformat(expiry_time(2e9, now_ns)).timestamp() == 2e9


@pytest.mark.contract("answer.durations")
def test_empty_fields_are_left_out() -> None:
    assert omit_empty(a=0, b="", c=None, d=[], e={}, f=1, g="x") == {"f": 1, "g": "x"}


def test_names_are_quoted() -> None:
    assert go_quote('a"b') == '"a\\"b"'
