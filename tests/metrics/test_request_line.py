"""The line of a request: one line, whatever a client put into it."""

from __future__ import annotations

import json

import pytest

from specd.metrics.request_line import logfmt


@pytest.mark.parametrize("character", [*map(chr, range(33)), "\x7f", "\x85", "\u2028", '"', "="])
def test_what_could_end_or_hide_a_line_is_quoted(character: str) -> None:
    assert logfmt({"path": f"a{character}b"}) == f"path={json.dumps(f'a{character}b')}"
