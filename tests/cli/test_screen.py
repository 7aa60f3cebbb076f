"""What `specd run` writes: whole to a pipe, wrapped and dimmed on a terminal; its report."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from specd.cli.report import go_duration, report_lines, speculation_words
from specd.cli.screen import Screen, Wrap
from tests.cli.talking import FINAL


def wrapped(text: str, width: int) -> str:
    wrap = Wrap(width)
    return "".join(map(wrap.feed, text)) + wrap.flush()


@pytest.mark.parametrize(
    "text,width,lines",
    [
        ("the quick brown fox", 10, "the quick \nbrown fox"),
        ("the quick, brown", 10, "the quick,\nbrown"),
        ("  indented\n    code = 1", 80, "  indented\n    code = 1"),
        ("a\n\nb", 10, "a\n\nb"),
        ("a verylongword x yyy", 5, "a \nverylongword x \nyyy"),
        ("\tx yy", 10, "\tx \nyy"),
        ("日本語日本語", 6, "日本語\n日本語"),
        ("", 10, ""),
    ],
)
def test_lines_break_between_words(text: str, width: int, lines: str) -> None:
    assert wrapped(text, width) == lines


@given(st.text(alphabet=" \nab日", max_size=60), st.integers(4, 20))
def test_wrapping_loses_no_word_and_keeps_within_the_width(text: str, width: int) -> None:
    text = "\n".join(line for line in text.split("\n") if all(len(w) < 4 for w in line.split(" ")))
    lines = wrapped(text, width)
    assert "".join(lines.split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in lines.split("\n"))


def screen(*, is_terminal: bool) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(out, Console(file=io.StringIO()), is_terminal=is_terminal), out


def speak(screen: Screen) -> None:
    screen.begin()
    screen.think("Hm\x1b[31m")
    screen.write("Yes \x1b]0;x\x07and no")
    screen.end()


def test_a_pipe_gets_every_letter() -> None:
    paper, out = screen(is_terminal=False)
    speak(paper)
    assert out.getvalue() == (
        "Thinking...\nHm\x1b[31m\n...done thinking.\n\nYes \x1b]0;x\x07and no"
    )


def test_on_a_terminal_thoughts_are_dim_and_a_model_cannot_command_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal, out = screen(is_terminal=True)
    speak(terminal)
    thought, answer = out.getvalue().split("...done ")
    assert "\x1b[2mHm[31m\x1b[0m" in thought
    assert answer.replace("\n", " ").split()[1:] == ["Yes", "]0;xand", "no"]


def test_the_end_of_a_thought_that_is_all_there_is() -> None:
    terminal, out = screen(is_terminal=False)
    terminal.begin()
    terminal.think("Hm")
    terminal.end()
    assert out.getvalue() == "Thinking...\nHm\n...done thinking.\n\n"


def test_the_report_has_ollamas_lines_and_what_speculation_gained() -> None:
    assert report_lines(FINAL) == [
        "total duration:       5.25s",
        "load duration:        12.5ms",
        "prompt eval count:    5 token(s)",
        "prompt eval duration: 1s",
        "prompt eval rate:     5.00 tokens/s",
        "eval count:           100 token(s)",
        "eval duration:        4s",
        "eval rate:            25.00 tokens/s",
        f"{'speculation:':<22}{speculation_words(FINAL['speculation'])}",
    ]
    assert report_lines({"eval_count": 2}) == ["eval count:           2 token(s)"]
    assert report_lines({}) == []


def test_speculation_is_one_line() -> None:
    words = speculation_words({"state": "parked", "reason": "cost", "detail": "It did not pay."})
    assert words == "parked, It did not pay."
    assert speculation_words(FINAL["speculation"]) == (
        "active, drafter small, 60 of 80 drafted tokens accepted (75%), 1.50 × plain"
    )


@pytest.mark.parametrize(
    "ns,text",
    [
        (0, "0ns"),
        (999, "999ns"),
        (1_500, "1.5µs"),
        (12_000_001, "12.000001ms"),
        (1_000_000_000, "1s"),
        (59_999_999_999, "59.999999999s"),
        (62_500_000_000, "1m2.5s"),
        (3_600_000_000_000, "1h0m0s"),
    ],
)
def test_durations_are_gos(ns: int, text: str) -> None:
    assert go_duration(ns) == text
