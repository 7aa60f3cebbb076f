"""Templates render, or fail, exactly as they do in Go.

`golden.json` holds what Go's own text/template made of each template; `oracle.go` wrote it.  The
first three hundred are one construct each, the others were made at random.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specd.errors import GoTemplateError
from specd.go_template import Struct, parse
from specd.go_template.json_text import json_text

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())

#: Go gives values inside a map or list the type `interface {}`; here they keep their own type.
TYPES_DIFFER = {
    "{{ range .Mixed }}{{ .X }}{{ end }}",
    "line one\n{{ range .List }}\n  {{- .X }}\n{{ end }}",
}


class Args(dict[str, object]):
    """The type of that name in oracle.go: a map with its own text."""

    type_name = "main.Args"

    def go_string(self) -> str:
        return json_text(self)


class List(list[object]):
    type_name = "main.List"

    def go_string(self) -> str:
        return json_text(self)


def typed(value: object) -> object:
    match value:
        case list():
            return [typed(item) for item in value]
        case {"$args": dict() as inner}:
            return Args({key: typed(item) for key, item in inner.items()})
        case {"$list": list() as items}:
            return List(typed(item) for item in items)
        case {"$person": {"Name": name, "Age": age, "Tags": tags}}:
            fields = {"Name": name, "Age": age, "Tags": typed(tags)}
            return Struct("main.Person", fields)
        case dict():
            return {key: typed(item) for key, item in value.items()}
        case _:
            return value


@pytest.mark.contract("templates.go")
def test_every_template_gives_gos_output_or_error() -> None:
    outcomes = [(case["template"], *rendered_and_wanted(case)) for case in GOLDEN["cases"]]
    assert len(outcomes) > 700
    assert [outcome for outcome in outcomes if outcome[1] != outcome[2]] == []


def rendered_and_wanted(case: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return what a template gives here and what it gives in Go: a text, an error or both."""
    try:
        found = {"text": parse(case["template"]).render(typed(GOLDEN["data"]))}
    except GoTemplateError as error:
        found = {"error": str(error)}
    wanted = {key: case[key] for key in ("text", "error") if key in case}
    if case["template"] in TYPES_DIFFER:
        found = {key: text.partition(" in type ")[0] for key, text in found.items()}
        wanted = {key: text.partition(" in type ")[0] for key, text in wanted.items()}
    return found, wanted
