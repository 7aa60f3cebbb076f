"""JSON is decoded and refused as in Go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.api.go_json_decoder import (
    MAX_DEPTH,
    MAX_VALUES,
    EmptyBody,
    decode_first,
    decode_whole,
    explain,
)
from specd.errors import InvalidRequest
from tests.fast import computes_long

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.contract("body.bad-json", "body.truncated")
@pytest.mark.parametrize(
    "raw, text",
    [
        ("{", "unexpected EOF"),
        ('{"a"', "unexpected EOF"),
        ('{"a":"b', "unexpected EOF"),
        ("tru", "unexpected EOF"),
        ("[1,", "unexpected EOF"),
        ("x", "invalid character 'x' looking for beginning of value"),
        ("'a'", "invalid character '\\'' looking for beginning of value"),
        ("NaN", "invalid character 'N' looking for beginning of value"),
        ('{"a":Infinity}', "invalid character 'I' looking for beginning of value"),
        ("\ufeff{}", "invalid character 'ï' looking for beginning of value"),
        ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
        ('{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ('{"a":1 "b":2}', "invalid character '\"' after object key:value pair"),
        ('{"a":01}', "invalid character '1' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
        ('{"a":"\n"}', "invalid character '\\n' in string literal"),
        ('"\\x"', "invalid character 'x' in string escape code"),
        ('"\\u00g0"', "invalid character 'g' in \\u hexadecimal character escape"),
        ("trub", "invalid character 'b' in literal true (expecting 'e')"),
        ("nil", "invalid character 'i' in literal null (expecting 'u')"),
        ("-x", "invalid character 'x' in numeric literal"),
        ("[1.x]", "invalid character 'x' after decimal point in numeric literal"),
        ("[1e+x]", "invalid character 'x' in exponent of numeric literal"),
        ('{"a":"\x00"}', "invalid character '\\x00' in string literal"),
    ],
)
def test_a_syntax_error_has_the_text_of_go(raw: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_first(raw.encode())
    assert str(caught.value) == text


@pytest.mark.parametrize("raw", [b"", b"  \r\n\t"])
def test_white_space_alone_is_an_empty_body(raw: bytes) -> None:
    with pytest.raises(EmptyBody, match="EOF"):
        decode_first(raw)


@pytest.mark.contract("body.first-value")
def test_only_the_first_value_is_read() -> None:
    assert decode_first(b' {"a":1} trailing } garbage') == {"a": 1}
    assert decode_first(b"1 2") == 1


def test_invalid_utf8_and_unpaired_surrogates_are_replaced() -> None:
    assert decode_first(b'"\xff"') == "\ufffd"
    assert decode_first(b'{"\\ud800":["\\udc00x"]}') == {"\ufffd": ["\ufffdx"]}
    assert decode_first(b'"\\ud83d\\ude00"') == "😀"


@pytest.mark.parametrize("opening, closing", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("text", [b'"x"', b'"\\u0041"'])
def test_nesting_has_a_bound(opening: bytes, closing: bytes, text: bytes) -> None:
    decode_first(opening * MAX_DEPTH + text + closing * MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 990, 100_000):
        for rest in (text + closing * depth, b"?", b""):
            with pytest.raises(InvalidRequest, match="exceeded max depth"):
                decode_first(opening * depth + rest)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("[" * 9999, "exceeded max depth"),
        ("{} {}", "invalid character '{' after top-level value"),
        ("{", "unexpected EOF"),
        ("[1e999]", "cannot unmarshal number"),
    ],
)
def test_json_inside_of_json_has_the_same_bounds_and_nothing_after_it(
    text: str, sentence: str
) -> None:
    assert decode_whole(' {"a": "\ud800"} \n') == {"a": "?"}
    with pytest.raises(InvalidRequest, match=sentence):
        decode_whole(text)


@computes_long
def test_more_values_than_memory_could_hold_are_refused() -> None:
    assert decode_first(b"[" + b"0," * (MAX_VALUES - 1) + b"0]") == [0] * MAX_VALUES
    with pytest.raises(InvalidRequest, match="more than 2097152 JSON values"):
        decode_first(b"[" + b"{}," * MAX_VALUES + b"0]")


@computes_long
@pytest.mark.parametrize("unit", [rb"\\\\,", b",", b"[", b"{", rb"\","])
def test_marks_inside_of_strings_do_not_count_as_values(unit: bytes) -> None:
    text = unit * (MAX_VALUES + 1)
    raw = rb'{"a":"\\","t":"' + text + b'"}'
    assert decode_first(raw) == json.loads(raw)
    with pytest.raises(InvalidRequest, match="more than 2097152 JSON values"):
        decode_first(b'["\\\\",' + b'"\\"",' * MAX_VALUES + b'"' + text + b'"]')


@computes_long
def test_a_long_body_is_not_read_twice_to_be_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"invalid JSON: .* at character 2000001"):
        decode_first(b"[" + b"0," * 1_000_000 + b"?")
    with pytest.raises(InvalidRequest, match=r"^invalid character '\?' after array element$"):
        decode_first(b'["' + b"x" * 2**22 + b'"?')


@pytest.mark.parametrize("raw", [b"1e999", b"9" * 400, b"[-1e400]"])
def test_a_number_beyond_a_float_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="cannot unmarshal number"):
        decode_first(raw)


@given(JSON)
def test_valid_json_is_decoded_and_not_explained(value: object) -> None:
    raw = json.dumps(value).encode()
    assert json.dumps(decode_first(raw)) == json.dumps(json.loads(raw)) or "\\ud" in raw.decode()
    assert explain(raw) == "invalid JSON"


@given(JSON)
def test_every_part_of_an_object_is_an_unexpected_end(value: object) -> None:
    raw = json.dumps({"k": value}).encode()
    for end in range(1, len(raw)):
        assert explain(raw[:end]) == "unexpected EOF"


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_clear_error(raw: bytes) -> None:
    try:
        decode_first(raw)
    except InvalidRequest as error:
        assert str(error) not in {"", "invalid JSON"}  # noqa: PT017
