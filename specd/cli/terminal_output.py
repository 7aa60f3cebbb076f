"""Write the output of `specd run`: answers as they arrive, wrapped at words on a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import Final, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status

_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
_TAB: Final = 8
#: Control characters: a model's text must not move the cursor or set the window title.
_CONTROLS: Final = {
    code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


class Screen:
    """The terminal's output.  out: answers, unchanged in a pipe.  notes: everything else."""

    def __init__(self, out: TextIO, notes: Console, *, is_terminal: bool) -> None:
        self.notes = notes
        self.wraps = True
        self._out = out
        self._is_terminal = is_terminal
        self._wrap: WordWrapper | None = None
        self._thinks = False
        self._spinner: Status | None = None

    def begin(self, waiting_for: str = "") -> None:
        """Start an answer; a terminal shows a spinner until the first word."""
        width = shutil.get_terminal_size().columns
        self._wrap = WordWrapper(width) if self._is_terminal and self.wraps else None
        if self._is_terminal and self.notes.is_terminal:
            self._spinner = self.notes.status(waiting_for)
            self._spinner.start()

    def think(self, text: str) -> None:
        if not self._thinks:
            self._write_raw("Thinking...\n")
            self._put_style(_DIM)
            self._thinks = True
        self._write_raw(text)

    def write(self, text: str) -> None:
        self._end_thought()
        self._write_raw(text)

    def end(self) -> None:
        """End an answer, complete or not."""
        self._end_thought()
        self._flush()
        self._stop_spinner()

    def say(self, line: str = "") -> None:
        """Write a line of the conversation other than an answer, wrapped on a terminal."""
        text = self._clean(line)
        if self._is_terminal and self.wraps:
            wrap = WordWrapper(shutil.get_terminal_size().columns)
            text = wrap.feed(text) + wrap.flush()
        self._out.write(f"{text}\n")
        self._out.flush()

    def note(self, line: str) -> None:
        """Write a line to `notes`, wrapped on a terminal."""
        self.notes.print(line, markup=False, soft_wrap=not self.notes.is_terminal)

    @property
    def notes_width(self) -> int | None:
        """Return the width of notes in columns; None if they do not go to a terminal."""
        return self.notes.width if self.notes.is_terminal else None

    def _end_thought(self) -> None:
        if self._thinks:
            self._flush()
            self._put_style(_PLAIN)
            self._write_raw("\n...done thinking.\n\n")
            self._thinks = False

    def _write_raw(self, text: str) -> None:
        if text:
            self._stop_spinner()
            text = self._clean(text)
            self._out.write(self._wrap.feed(text) if self._wrap else text)
            self._out.flush()

    def _put_style(self, code: str) -> None:
        if self._is_terminal:
            self._flush()
            self._out.write(code)

    def _flush(self) -> None:
        if self._wrap:
            self._out.write(self._wrap.flush())
            self._out.flush()

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None

    def _clean(self, text: str) -> str:
        return text.translate(_CONTROLS) if self._is_terminal else text


class WordWrapper:
    """A wrapper that breaks lines at words to fit `width` columns, and holds back partial words."""

    def __init__(self, width: int) -> None:
        self._width = max(width, 1)
        self._column = 0
        self._word = ""
        self._word_width = 0
        self._may_break = True

    def feed(self, text: str) -> str:
        return "".join(map(self._feed_character, text))

    def flush(self) -> str:
        """Return the word so far, on a new line if it does not fit this one."""
        word, width = self._word, self._word_width
        self._word, self._word_width = "", 0
        end = self._column + width
        breaks = self._may_break and self._column and end > self._width
        # The terminal breaks longer words itself, so that they can be copied whole.
        self._column = width if breaks else end if end <= self._width else end % self._width
        return f"\n{word}" if breaks else word

    def _feed_character(self, letter: str) -> str:
        match letter:
            case "\n":
                done = self.flush()
                self._column, self._may_break = 0, True
                return done + letter
            case " " | "\t":
                done = self.flush()
                self._may_break = True
                if self._column >= self._width:
                    return done  # the line is full: its end replaces the blank
                self._column += 1 if letter == " " else 8 - self._column % _TAB
                return done + letter
        width = cell_len(letter)
        self._word += letter
        self._word_width += width
        if width < 2 and self._word_width < self._width:
            return ""
        # Wide characters may break anywhere; a word longer than a line cannot be held back.
        done = self.flush()
        self._may_break = width == 2
        return done


def terminal_screen() -> Screen:
    notes = Console(stderr=True, highlight=False, emoji=False)
    return Screen(sys.stdout, notes, is_terminal=sys.stdout.isatty())
