"""Base64 errors name the same byte as in Go."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.api.body import decode_base64
from specd.errors import InvalidRequest


@given(st.binary())
def test_decoding_reverts_encoding(data: bytes) -> None:
    text = base64.encodebytes(data).decode()  # with line breaks
    assert decode_base64(text) == data


@pytest.mark.parametrize(
    "text, at",
    [
        ("data:image/png;base64,AAAA", 4),
        ("AA-A", 2),
        ("AAAAA", 4),
        ("AAA", 0),
        ("A===", 1),
        ("AA=A", 3),
        ("AA==AA", 4),
        ("AAA=AAAA", 4),
        ("AA=", 3),
    ],
)
def test_an_illegal_byte_is_named(text: str, at: int) -> None:
    with pytest.raises(InvalidRequest, match=f"illegal base64 data at input byte {at}$"):
        decode_base64(text)


@given(st.text(alphabet="AB+/=-\n", max_size=12))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    try:
        decode_base64(text)
    except InvalidRequest:
        return
    assert len(text.replace("\n", "")) % 4 == 0
