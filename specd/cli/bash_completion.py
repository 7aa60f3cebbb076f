"""The words that bash sends for TAB, put together again where it parted a name at its colon.

bash ends a word at a colon: of `specd run llama3.2:1` it sends `llama3.2`, `:` and `1`, and what it
is offered replaces the `1` alone.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Final

#: Variables that typer's script for bash sets.
_MODE: Final = "_SPECD_COMPLETE"
_WORDS: Final = "COMP_WORDS"
_CURSOR: Final = "COMP_CWORD"
#: What of the name stands before the colon that bash took for the end of a word.
COLON_PREFIX: Final = "_SPECD_COMPLETE_BEFORE"


def join_split_names(environment: MutableMapping[str, str]) -> None:
    """Put the words of a request for TAB together, and note what stands before the last colon.

    What other shells send, and an environment without a request, is left as it is.
    """
    if environment.get(_MODE) != "complete_bash":
        return
    words = environment.get(_WORDS, "").split("\n")
    cursor = environment.get(_CURSOR, "")
    if not cursor.isdecimal() or int(cursor) >= len(words):
        return
    joined, position = _join_at_colons(words, int(cursor))
    before, colon, last = joined[position].rpartition(":")
    # A word with a colon that bash left whole is replaced as a whole.
    if colon and words[int(cursor)] in {last, ":"}:
        joined[position] = last
        environment[COLON_PREFIX] = before + colon
    environment[_WORDS] = "\n".join(joined)
    environment[_CURSOR] = str(position)


def _join_at_colons(words: Sequence[str], cursor: int) -> tuple[list[str], int]:
    """Return the words, those around a colon as one, and the place of the one at `cursor`."""
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
