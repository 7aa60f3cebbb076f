"""Templates render, or fail, exactly as they do in Go.

`golden.json` holds what Go's own text/template made of each template; `oracle.go` wrote it.  The
first three hundred are one construct each, the others were made at random.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specd.go_template import GoTemplateError, Struct, parse
from specd.go_template.json_text import json_text

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())

#: In Go what is inside of a map or a list has no type but `interface {}`; here it keeps its own.
TYPES_DIFFER = {
    "{{ range .Mixed }}{{ .X }}{{ end }}",
    "line one\n{{ range .List }}\n  {{- .X }}\n{{ end }}",
}


class Args(dict[str, object]):
    """oracle.go's type of that name: a map with a text of its own."""

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
@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: ascii(case["template"])[:60])
def test_a_template_does_what_it_does_in_go(case: Mapping[str, str]) -> None:
    try:
        found = {"text": parse(case["template"]).render(typed(GOLDEN["data"]))}
    except GoTemplateError as error:
        found = {"error": str(error)}
    wanted = {key: case[key] for key in ("text", "error") if key in case}
    if case["template"] in TYPES_DIFFER:
        found = {key: text.partition(" in type ")[0] for key, text in found.items()}
        wanted = {key: text.partition(" in type ")[0] for key, text in wanted.items()}
    assert found == wanted
