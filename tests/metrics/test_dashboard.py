"""Check that configs/grafana/specd.json uses existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specd.metrics.families import FAMILIES, PROCESS

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "configs/grafana/specd.json").read_text())
PANELS: list[dict[str, Any]] = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

#: Series → its labels.
SERIES = {
    series: frozenset(family.labels) | ({"le"} if series.endswith("_bucket") else set())
    for family in FAMILIES
    for series in family.series
} | dict.fromkeys(PROCESS, frozenset[str]())
#: Labels that Prometheus adds to every series.
ADDED = {"instance", "job"}
NAME = re.compile(r"\b(?:specd:\w+|process_\w+)")
SELECTOR = re.compile(r"(specd:\w+|process_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\b(?:by|on|group_left|without)\s*\(([^)]*)\)")


def queries() -> Iterator[tuple[str, str]]:
    """Yield each query: the title of its panel (or its variable's name), and its PromQL."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def faults(expr: str) -> list[str]:
    """Return the errors of a query: unknown metrics and labels, or no metric at all."""
    names = NAME.findall(expr)
    found = [f"no metric: {name}" for name in names if name not in SERIES]
    for name, selector in SELECTOR.findall(expr):
        labels = SERIES.get(name, frozenset()) | ADDED
        found += [
            f"{name} has no {label}" for label in MATCHER.findall(selector) if label not in labels
        ]
    for group in GROUPING.findall(expr):
        for label in filter(None, re.split(r"[\s,]+", group)):
            if any(label not in SERIES.get(name, frozenset()) | ADDED for name in names):
                found.append(f"not every metric of it has {label}")
    return found if names else ["it asks for nothing"]


@pytest.mark.parametrize("panel,expr", list(queries()))
def test_every_query_uses_existing_metrics_and_labels(panel: str, expr: str) -> None:
    assert faults(expr) == []
    assert expr.count("(") == expr.count(")")


def test_every_legend_names_labels_that_its_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            kept = {"le"}
            for group in GROUPING.findall(target["expr"]):
                kept |= set(re.split(r"[\s,]+", group))
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= kept, panel["title"]
            assert target["legendFormat"]


@pytest.mark.parametrize(
    "expr,fault",
    [
        ("rate(specd:nothing_total[1m])", "no metric: specd:nothing_total"),
        ("specd:generation_tokens", "no metric: specd:generation_tokens"),
        ('specd:ready{model_name="x"}', "specd:ready has no model_name"),
        ("sum by (drafter) (specd:generation_tokens_total)", "not every metric of it has drafter"),
        ("vector(1)", "it asks for nothing"),
    ],
)
def test_errors_in_queries_are_found(expr: str, fault: str) -> None:
    assert faults(expr) == [fault]


def test_every_panel_has_a_description_a_unit_and_a_source() -> None:
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == SOURCE
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_fill_the_grid_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_data_source_is_chosen_at_the_import() -> None:
    variables = {v["name"]: v for v in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["model"]["datasource"] == SOURCE
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - {"__rate_interval", "__all"} == set(variables)


def test_the_important_metrics_are_on_the_dashboard() -> None:
    asked = {name for _, expr in queries() for name in NAME.findall(expr)}
    families = {f.full_name for f in FAMILIES if asked & set(f.series)}
    left_out = {f.full_name for f in FAMILIES} - families
    assert left_out <= {
        "specd:build_info",
        "specd:model_context_tokens",
        "specd:model_slots",
        "specd:prefix_cache_queries",
        "specd:request_inference_time_seconds",
        "specd:spec_decode_num_accepted_lookup_tokens",
        "specd:spec_decode_num_lookup_tokens",
    }


def test_it_is_in_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '"configs" = "specd/configs"' in project
