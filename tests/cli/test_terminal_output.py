"""The output of `specd run` in a pipe and on a terminal, and its report."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from specd.cli.formatting import format_drafting, go_duration, report_lines
from specd.cli.terminal_output import Screen, WordWrapper
from tests.cli.conversation_helpers import FINAL
from tests.cli.fake_daemon import Json


def wrapped(text: str, width: int) -> str:
    wrap = WordWrapper(width)
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
def test_wrapping_keeps_all_words_within_the_width(text: str, width: int) -> None:
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


def test_a_pipe_gets_the_text_unchanged() -> None:
    recording_console, out = screen(is_terminal=False)
    speak(recording_console)
    assert out.getvalue() == (
        "Thinking...\nHm\x1b[31m\n...done thinking.\n\nYes \x1b]0;x\x07and no"
    )


def test_a_terminal_gets_dim_thinking_and_no_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    terminal, out = screen(is_terminal=True)
    speak(terminal)
    thought, answer = out.getvalue().split("...done ")
    assert "\x1b[2mHm[31m\x1b[0m" in thought
    assert answer.replace("\n", " ").split()[1:] == ["Yes", "]0;xand", "no"]


def test_an_answer_of_thinking_alone_is_closed() -> None:
    terminal, out = screen(is_terminal=False)
    terminal.begin()
    terminal.think("Hm")
    terminal.end()
    assert out.getvalue() == "Thinking...\nHm\n...done thinking.\n\n"


def test_the_report_has_ollamas_lines_and_one_on_drafting() -> None:
    assert report_lines(FINAL) == [
        "total duration:       5.25s",
        "load duration:        12.5ms",
        "prompt eval count:    5 token(s)",
        "prompt eval duration: 1s",
        "prompt eval rate:     5.00 tokens/s",
        "eval count:           100 token(s)",
        "eval duration:        4s",
        "eval rate:            25.00 tokens/s",
        "drafting:             60 of 80 tokens accepted (75%), 1.50× plain, small",
    ]
    assert report_lines({"eval_count": 2}) == ["eval count:           2 token(s)"]
    assert report_lines({}) == []


def test_a_long_report_line_is_wrapped_below_its_value() -> None:
    why = "the drafter rests since its drafts take longer than they save"
    final = {"eval_count": 2, "speculation": {"state": "parked", "reason": "x", "detail": why}}
    assert report_lines(final, 60) == [
        "eval count:           2 token(s)",
        "drafting:             none: the drafter rests since its",
        "                      drafts take longer than they save",
    ]
    assert len(report_lines(final)) == 2


@pytest.mark.parametrize(
    "speculation,words",
    [
        ({"state": "off", "reason": "", "detail": ""}, "none"),
        ({"state": "off", "reason": "disabled_by_user"}, "none: disabled_by_user"),
        ({"state": "active", "draft_n": 3, "draft_n_accepted": 1}, "1 of 3 tokens accepted (33%)"),
    ],
)
def test_drafting_is_reported_in_one_line(speculation: Json, words: str) -> None:
    assert format_drafting(speculation) == words


def test_notes_and_lines_are_wrapped_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    for is_terminal, wanted in ((True, "the quick\nbrown fox\n"), (False, "the quick brown fox\n")):
        out, notes = io.StringIO(), io.StringIO()
        console = Console(file=notes, width=10, force_terminal=is_terminal, color_system=None)
        screen = Screen(out, console, is_terminal=is_terminal)
        screen.say("the quick brown fox")
        screen.note("the quick brown fox")
        assert notes.getvalue().replace(" \n", "\n") == wanted
        assert out.getvalue().replace(" \n", "\n") == wanted
        assert screen.notes_width == (10 if is_terminal else None)


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
def test_durations_are_formatted_as_in_go(ns: int, text: str) -> None:
    assert go_duration(ns) == text
