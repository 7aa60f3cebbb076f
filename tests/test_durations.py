"""Check Go's duration syntax and its error messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.durations import parse_go_duration


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1m", -60),
        (".5s", 0.5),
        ("1.5h", 5400),
        ("1.s", 1),
        ("250ms", 0.25),
        ("3us", 3e-6),
        ("3µs", 3e-6),
        ("3μs", 3e-6),
        ("7ns", 7e-9),
        ("0.9999999999999999999s", 0.999999999),
        ("9223372036s", 9223372036),
    ],
)
def test_durations_of_go_are_parsed(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == seconds


@pytest.mark.parametrize(
    "text,said",
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("x", 'time: invalid duration "x"'),
        (".s", 'time: invalid duration ".s"'),
        ("5", 'time: missing unit in duration "5"'),
        ("1h5", 'time: missing unit in duration "1h5"'),
        ("5y", 'time: unknown unit "y" in duration "5y"'),
        ("5m ", 'time: unknown unit "m " in duration "5m "'),
        ('"5m\\', r'time: invalid duration "\"5m\\"'),
        ("é", r'time: invalid duration "\xc3\xa9"'),
        ("9223372037s", 'time: invalid duration "9223372037s"'),
        ("٣s", r'time: invalid duration "\xd9\xa3s"'),
    ],
)
def test_invalid_durations_have_gos_error(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_go_duration(text)
    assert str(caught.value) == said


@given(st.text())
def test_any_text_is_a_number_of_seconds_or_an_error_of_go(text: str) -> None:
    try:
        parse_go_duration(text)
    except ValueError as error:
        assert str(error).startswith("time: ")  # noqa: PT017 - a number or an error


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_terms_add_up(hours: int, minutes: int, seconds: int, ms: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{ms}ms"
    assert parse_go_duration(text) == pytest.approx(
        hours * 3600 + minutes * 60 + seconds + ms / 1e3
    )


def test_a_million_digits_are_refused_unparsed() -> None:
    with pytest.raises(ValueError):
        parse_go_duration("9" * 1_000_000 + "s")
