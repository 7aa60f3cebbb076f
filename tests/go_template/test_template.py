"""Templates come from strangers: they end in a text or in their own error, and soon."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specd.errors import InvalidRequest
from specd.go_template import GoTemplateError, Struct, check_template, parse
from specd.go_template.functions import FUNCTIONS

PIECES = st.sampled_from(
    [
        *(
            "{{",
            "}}",
            "{{-",
            "-}}",
            "(",
            ")",
            "|",
            ":=",
            "=",
            ",",
            ".",
            "$",
            "$x",
            ".X",
            ".L",
            ".M",
        ),
        *("if ", "else ", "end", "range ", "with ", "define ", "template ", "block ", "break"),
        *(
            " ",
            "\n",
            '"a"',
            '"%5.3d"',
            "`r`",
            "'c'",
            "1",
            "-2.5",
            "0x1F",
            "nil",
            "true",
            "/*",
            "*/",
        ),
        *(f"{name} " for name in FUNCTIONS),
    ]
)
SQUARED = (
    '{{ define "a" }}{{ template "b" }}{{ template "b" }}{{ end }}'
    '{{ define "b" }}{{ range 1000 }}{{ range 1000 }}{{ end }}{{ end }}{{ end }}'
    '{{ template "a" }}'
)
DATA = {"X": "é\ud800", "L": [1, None, "x", [2]], "M": {"k": Struct("main.S", {"X": 1.5})}}


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_actions_stays_as_it_is(text: str) -> None:
    assert parse(text).render({}) == text


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=30).map("{{{{ {} }}}}".format))
@example('{{ printf "%[99999999999999999999]d" 1 }}')
@example("{{ index .L 0x7fffffffffffffff }}")
def test_nothing_but_the_templates_own_error_gets_out(text: str) -> None:
    with contextlib.suppress(GoTemplateError):
        assert isinstance(parse(text).render(DATA, max_steps=10_000), str)


@given(st.text(max_size=20), st.lists(st.integers() | st.floats() | st.text() | st.none()))
def test_printf_never_fails(form: str, values: list[object]) -> None:
    args = " ".join(f"(index .V {i})" for i in range(len(values)))
    parse(f"{{{{ printf .F {args} }}}}").render({"F": form, "V": values})


@pytest.mark.parametrize(
    "text",
    [
        "{{ range 1000000000 }}{{ end }}",
        "{{ range 1000000000 }}x{{ end }}",
        '{{ $x := "ab" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}',
        '{{ range 1000000 }}{{ $x := printf "%900000d" 1 }}{{ end }}',
        SQUARED,
    ],
)
def test_work_has_a_bound(text: str) -> None:
    with pytest.raises(GoTemplateError, match="takes too many steps"):
        parse(text).render({}, max_steps=50_000)


def test_templates_that_call_themselves_have_a_bound() -> None:
    template = parse('{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}')
    with pytest.raises(GoTemplateError, match="exceeded maximum template depth"):
        template.render({})


@pytest.mark.parametrize(
    "text",
    ["{{ if 1 }}" * 5000 + "{{ end }}" * 5000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"],
)
def test_nesting_has_a_bound(text: str) -> None:
    with pytest.raises(GoTemplateError, match="depth exceeded"):
        parse(text)


def test_the_deepest_nesting_allowed_renders() -> None:
    text = "{{ if 1 }}" * 50 + "{{ " + "(" * 50 + "1" + ")" * 50 + " }}" + "{{ end }}" * 50
    assert parse(text).render({}) == "1"


def test_a_values_own_method_is_called_by_its_name() -> None:
    value = Struct("main.S", {}, methods={"Shout": lambda: "HI"})
    assert parse("{{ .Shout }} {{ (.Shout) }}").render(value) == "HI HI"


@pytest.mark.contract("templates.go-functions")
def test_dates_are_those_of_the_machine() -> None:
    today, yesterday = parse("{{ currentDate }} {{ yesterdayDate }}").render({}).split()
    assert dt.date.fromisoformat(today) - dt.date.fromisoformat(yesterday) == dt.timedelta(days=1)


@pytest.mark.contract("templates.go-functions")
def test_what_is_no_property_of_a_tool_may_be_anything_in_typescript() -> None:
    assert parse("{{ toTypeScriptType 3 }}").render({}) == "any"


def test_half_a_letter_is_replaced() -> None:
    assert parse("{{ slice .X 0 1 }}|{{ len .X }}").render({"X": "é"}) == "\ufffd|2"


def test_a_template_is_checked_in_ollamas_words() -> None:
    check_template("{{ .Prompt }}")
    with pytest.raises(InvalidRequest, match=r"^template error: template: :1: unclosed action$"):
        check_template("{{ .Prompt")
