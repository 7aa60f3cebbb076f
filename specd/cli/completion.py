"""Complete model names with the names that the daemon knows.

The list is empty if the daemon does not answer within 0.5 s.  bash ends a word at a colon: for
`specd run llama3.2:1` it sends `llama3.2`, `:` and `1`, and its completion replaces the `1` only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Final

from specd.daemon_address import daemon_address
from specd.errors import SpecdError

#: Timeout for connecting to a daemon on another machine.
_TIMEOUT_S: Final = 0.5
#: Variables that typer's bash script sets.
_MODE: Final = "_SPECD_COMPLETE"
_WORDS: Final = "COMP_WORDS"
_CURSOR: Final = "COMP_CWORD"
#: The part of the name before the colon at which bash split it.
COLON_PREFIX: Final = "_SPECD_COMPLETE_BEFORE"


def complete_models(incomplete: str) -> list[str]:
    """Return the names of the models on disk that start with `incomplete`."""
    return _matching("/api/tags", incomplete)


def complete_loaded_models(incomplete: str) -> list[str]:
    """Return the names of the models in memory that start with `incomplete`."""
    return _matching("/api/ps", incomplete)


def _matching(path: str, incomplete: str) -> list[str]:
    before = os.environ.get(COLON_PREFIX, "")
    wanted = before + incomplete
    return [name.removeprefix(before) for name in _names(path) if name.startswith(wanted)]


def _names(path: str) -> Iterator[str]:
    from specd.cli.sync_client import SyncClient

    try:
        address = daemon_address()
        client = SyncClient(address.url, address.key, connect_s=_TIMEOUT_S, read_s=_TIMEOUT_S)
        models: Any = client.get(path).get("models")
    except SpecdError:
        return
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("name"), str):
            yield model["name"]


# --------------------------------------------------------------------------- bash


def join_split_names(environment: MutableMapping[str, str]) -> None:
    """Join the split words of a completion request, and store the text before the last colon.

    An environment from another shell, or without a request, is not changed.
    """
    if environment.get(_MODE) != "complete_bash":
        return
    words = environment.get(_WORDS, "").split("\n")
    cursor = environment.get(_CURSOR, "")
    if not cursor.isdecimal() or int(cursor) >= len(words):
        return
    joined, position = _join_at_colons(words, int(cursor))
    before, colon, last = joined[position].rpartition(":")
    # bash replaces a word with a colon as a whole if it did not split it.
    if colon and words[int(cursor)] in {last, ":"}:
        joined[position] = last
        environment[COLON_PREFIX] = before + colon
    environment[_WORDS] = "\n".join(joined)
    environment[_CURSOR] = str(position)


def _join_at_colons(words: Sequence[str], cursor: int) -> tuple[list[str], int]:
    """Return the words, joined at colons, and the index of the word at `cursor`."""
    joined: list[str] = []
    position = cursor
    for index, word in enumerate(words):
        is_rest = word == ":" or (bool(word) and index > 0 and words[index - 1] == ":")
        if is_rest and len(joined) > 1:  # the first word is the program
            joined[-1] += word
        else:
            joined.append(word)
        if index == cursor:
            position = len(joined) - 1
    return joined, position
