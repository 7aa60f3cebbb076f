"""The line of a request: one line, whatever a client put into it."""

from __future__ import annotations

import json

import pytest

from specd.metrics import RequestRecord
from specd.metrics.request_line import logfmt, request_fields

UNSEEN = [*map(chr, range(33)), "\x7f", "\x85", "\u2028"]
#: Printable, and not of ASCII: a letter, one that looks like another, one of two columns.
FOREIGN = ["é", "а", "語"]


@pytest.mark.parametrize("character", [*UNSEEN, *FOREIGN, '"', "="])
def test_what_could_end_or_hide_a_line_is_quoted(character: str) -> None:
    assert logfmt({"path": f"a{character}b"}) == f"path={json.dumps(f'a{character}b')}"


def test_of_a_path_that_nobody_has_the_beginning_is_said() -> None:
    record = RequestRecord(path="/" + "x" * 9000)
    assert request_fields(record)["path"] == "/" + "x" * 127
