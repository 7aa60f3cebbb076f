"""Untrusted templates end soon, with a text or a GoTemplateError."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specd.errors import GoTemplateError, InvalidRequest
from specd.go_template import Budget, Struct, check_template, parse
from specd.go_template.functions import FUNCTIONS
from specd.go_template.template import MAX_CHARACTERS
from tests.fast import computes_long

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
    '{{ define "b" }}{{ range 300 }}{{ range 300 }}{{ end }}{{ end }}{{ end }}'
    '{{ template "a" }}'
)
#: Each template calls the next one twice; none prints anything.
DOUBLED = "".join(
    f'{{{{ define "{i}" }}}}{{{{ template "{i + 1}" }}}}{{{{ template "{i + 1}" }}}}{{{{ end }}}}'
    for i in range(13)
)
DOUBLED += '{{ define "13" }}{{ end }}{{ template "0" }}'
DATA = {"X": "é\ud800", "L": [1, None, "x", [2]], "M": {"k": Struct("main.S", {"X": 1.5})}}


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_actions_is_unchanged(text: str) -> None:
    assert parse(text).render({}) == text


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=30).map("{{{{ {} }}}}".format))
@example('{{ printf "%[99999999999999999999]d" 1 }}')
@example("{{ index .L 0x7fffffffffffffff }}")
def test_any_text_renders_or_raises_go_template_error(text: str) -> None:
    with contextlib.suppress(GoTemplateError):
        assert isinstance(parse(text).render(DATA, Budget(max_steps=10_000)), str)


@given(st.text(max_size=20), st.lists(st.integers() | st.floats() | st.text() | st.none()))
def test_printf_never_fails(form: str, values: list[object]) -> None:
    args = " ".join(f"(index .V {i})" for i in range(len(values)))
    parse(f"{{{{ printf .F {args} }}}}").render({"F": form, "V": values})


TOO_MANY = "takes too many steps"


@pytest.mark.parametrize(
    "text",
    [
        "{{ range 100000 }}{{ end }}",
        "{{ range 100000 }}x{{ end }}",
        '{{ $x := "ab" }}{{ range 18 }}{{ $x = print $x $x }}{{ end }}',
        '{{ range 100 }}{{ $x := printf "%90000d" 1 }}{{ end }}',
        "{{ range 50 }}" + "x" * 6400 + "{{ end }}",
        "{{ $x := print" + " (print)" * 5000 + " }}",
        SQUARED,
        DOUBLED,
    ],
)
def test_the_number_of_steps_is_limited(text: str) -> None:
    with pytest.raises(GoTemplateError, match=TOO_MANY):
        parse(text).render({}, Budget(max_steps=5000))


@pytest.mark.parametrize(
    "use",
    [
        *("$x := len $.P", "$x := index $.P 3", "$x := slice $.P 1", "$x := slice $.L 1"),
        *("$x := eq $.P $.P", "$x := lt $.P $.P", "range $.M }}{{ break }}{{ end"),
    ],
)
def test_reading_a_value_costs_steps_by_its_size(use: str) -> None:
    """Each template makes one call that does much work."""
    template = parse(f"{{{{ range 100 }}}}{{{{ {use} }}}}{{{{ end }}}}")
    small = {"P": "éééé", "L": [1] * 3, "M": {"1": 1}}
    assert template.render(small, Budget(max_steps=1000)) == ""
    large = {"P": "é" * 640, "L": [1] * 10_240, "M": dict.fromkeys(map(str, range(100)), 1)}
    with pytest.raises(GoTemplateError, match=TOO_MANY):
        template.render(large, Budget(max_steps=1000))


def test_a_variable_lookup_costs_steps_by_its_depth() -> None:
    text = "{{ $a := 1 }}MANY{{ range 100 }}{{ $x := $a }}{{ end }}"
    assert parse(text).render({}, Budget(max_steps=1000)) == "MANY"
    with pytest.raises(GoTemplateError, match=TOO_MANY):
        parse(text.replace("MANY", "{{ $v := 1 }}" * 400)).render({}, Budget(max_steps=1000))


@computes_long
def test_a_long_chat_may_compare_each_index_with_the_last() -> None:
    text = "{{ range $i, $_ := . }}{{ if eq (len (slice $ $i)) 1 }}last{{ end }}{{ end }}"
    assert parse(text).render([0] * 10_000) == "last"


def test_cpu_time_is_limited() -> None:
    text = "{{ range 5000 }}{{ end }}"
    assert parse(text).render({}, Budget(cpu_s=iter([0.0, *[1.9] * 10]).__next__)) == ""
    with pytest.raises(GoTemplateError, match="takes too long"):
        parse(text).render({}, Budget(cpu_s=iter([0.0, 1.9, 2.1]).__next__))


@pytest.mark.parametrize(
    "text",
    [
        '{{ printf "%900000d%900000d" 1 2 }}'.replace("d%", "d" + "%900000v" * 20 + "%"),
        '{{ printf "%900000v" .L }}',
        '{{ printf "%900000v" .S }}',
        '{{ printf "%900000v" .M }}',
        '{{ $x := printf "%900000v" 1 }}{{ print' + " $x" * 20 + " }}",
        '{{ $x := printf "%900000v" 1 }}{{ println' + " $x" * 20 + " }}",
    ],
)
def test_the_output_of_one_call_is_limited(text: str) -> None:
    numbers = dict.fromkeys(map(str, range(20)), 1)
    data = {"L": [1] * 20, "M": numbers, "S": Struct("main.S", numbers)}
    args = " 1" * 20
    with pytest.raises(GoTemplateError, match="the text is too long"):
        parse(text.replace(" 1 2 }}", args + " 1 2 }}")).render(data)


def test_a_width_from_an_argument_has_gos_limit() -> None:
    assert parse('{{ printf "%*d" 1000001 7 }}').render({}) == "%!(BADWIDTH)7"
    assert parse('{{ printf "%*d" -1000001 7 }}').render({}) == "%!(BADWIDTH)7"
    assert parse('{{ printf "%*d|%-*d|" 3 7 3 7 }}').render({}) == "  7|7  |"


def test_a_variable_in_a_range_body_lasts_one_iteration() -> None:
    text = '{{ $x := "a" }}{{ range 2 }}{{ $x }}{{ $x := "b" }}{{ $x }}{{ end }}'
    assert parse(text).render({}) == "abab"


def test_recursion_of_templates_is_limited() -> None:
    template = parse('{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}')
    with pytest.raises(GoTemplateError, match="exceeded maximum template depth"):
        template.render({})


@pytest.mark.parametrize(
    "text",
    ["{{ if 1 }}" * 3000 + "{{ end }}" * 3000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"],
)
def test_nesting_is_limited(text: str) -> None:
    with pytest.raises(GoTemplateError, match="depth exceeded"):
        parse(text)


def test_the_length_of_a_template_is_limited() -> None:
    with pytest.raises(GoTemplateError, match="more than 65536 characters"):
        parse("x" * (MAX_CHARACTERS + 1))
    assert parse("x" * MAX_CHARACTERS).render({}) == "x" * MAX_CHARACTERS


def test_the_deepest_nesting_allowed_renders() -> None:
    text = "{{ if 1 }}" * 50 + "{{ " + "(" * 50 + "1" + ")" * 50 + " }}" + "{{ end }}" * 50
    assert parse(text).render({}) == "1"


def test_a_method_is_called_by_its_name() -> None:
    value = Struct("main.S", {}, methods={"Shout": lambda: "HI"})
    assert parse("{{ .Shout }} {{ (.Shout) }}").render(value) == "HI HI"


@pytest.mark.contract("templates.go-functions")
def test_dates_are_in_local_time() -> None:
    today, yesterday = parse("{{ currentDate }} {{ yesterdayDate }}").render({}).split()
    assert dt.date.fromisoformat(today) - dt.date.fromisoformat(yesterday) == dt.timedelta(days=1)


@pytest.mark.contract("templates.go-functions")
def test_the_typescript_type_of_other_values_is_any() -> None:
    assert parse("{{ toTypeScriptType 3 }}").render({}) == "any"


def test_unpaired_surrogates_are_replaced() -> None:
    assert parse("{{ slice .X 0 1 }}|{{ len .X }}").render({"X": "é"}) == "\ufffd|2"


def test_check_template_raises_ollamas_text() -> None:
    check_template("{{ .Prompt }}")
    with pytest.raises(InvalidRequest, match=r"^template error: template: :1: unclosed action$"):
        check_template("{{ .Prompt")
