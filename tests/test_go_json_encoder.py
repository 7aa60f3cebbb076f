"""Compare the JSON encoder with Go's."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.go_json_encoder import go_json, replace_surrogates, sanitize_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.7, "0.7"),
        (-2.5e-5, "-0.000025"),
        (1e-6, "0.000001"),
        (1.25e-9, "1.25e-9"),
        (1e20, "100000000000000000000"),
        (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        ("<&>\u2028\b\x01é\x7f", '"\\u003c\\u0026\\u003e\\u2028\\b\\u0001é\x7f"'),
        ((1, None), "[1,null]"),
    ],
)
def test_values_are_written_as_go_writes_them(value: object, text: str) -> None:
    assert go_json(value) == text.encode() + b"\n"


def test_maps_are_sorted_on_request() -> None:
    value = {"b": {"d": 1, "c": 2}, "a": True}
    assert go_json(value) == b'{"b":{"d":1,"c":2},"a":true}\n'
    assert go_json(value, sort=True) == b'{"a":true,"b":{"c":2,"d":1}}\n'


@given(VALUES)
def test_the_json_has_the_same_value(value: object) -> None:
    assert json.loads(go_json(value), parse_int=float) == value


@pytest.mark.parametrize("value", [math.inf, math.nan, b"bytes", {"a": {1}}])
def test_values_without_json_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON has no"):
        go_json(value)


@pytest.mark.parametrize(
    "text, sent",
    [
        ("plain é 😀", "plain é 😀"),
        ("\ud800", "\ufffd"),
        ("a\udc00b\ud83d", "a\ufffdb\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_halves_of_a_surrogate_pair_are_joined_or_replaced(text: str, sent: str) -> None:
    assert replace_surrogates(text) == sent
    sent.encode()


def test_a_sendable_value_has_no_surrogate_in_texts_or_keys() -> None:
    value = {"\ud800": ["\udc00x", {"k": "\ud83d"}], "n": [1, 2.5, None, True]}
    assert sanitize_json(value) == {
        "\ufffd": ["\ufffdx", {"k": "\ufffd"}],
        "n": [1, 2.5, None, True],
    }
