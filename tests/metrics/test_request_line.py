"""The log line of a request stays one line."""

from __future__ import annotations

import json

import pytest

from specd.metrics import RequestRecord
from specd.metrics.request_line import logfmt, request_fields

UNSEEN = [*map(chr, range(33)), "\x7f", "\x85", "\u2028"]
#: Printable, but not ASCII: a letter, a look-alike of a Latin letter, and a wide character.
FOREIGN = ["é", "а", "語"]


@pytest.mark.parametrize("character", [*UNSEEN, *FOREIGN, '"', "="])
def test_values_that_could_break_a_line_are_quoted(character: str) -> None:
    assert logfmt({"path": f"a{character}b"}) == f"path={json.dumps(f'a{character}b')}"


def test_the_beginning_of_an_unknown_path_is_logged() -> None:
    record = RequestRecord(path="/" + "x" * 9000)
    assert request_fields(record)["path"] == "/" + "x" * 127
