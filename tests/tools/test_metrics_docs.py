"""Test that docs/metrics.md matches the declarations."""

from __future__ import annotations

from pathlib import Path

from specd.metrics.families import FAMILIES
from specd.metrics.request_line import FIELDS
from tools import metrics_docs


def test_it_has_every_metric_and_every_field() -> None:
    page = metrics_docs.render()
    assert all(f"| `{family.full_name}" in page for family in FAMILIES)
    assert all(f"| `{name}` |" in page for name in FIELDS)


def test_a_different_or_missing_page_is_stale(tmp_path: Path) -> None:
    assert metrics_docs.stale(tmp_path) == [metrics_docs.PAGE]
    (tmp_path / "docs").mkdir()
    page = tmp_path / metrics_docs.PAGE
    page.write_text(metrics_docs.render())
    assert metrics_docs.stale(tmp_path) == []
    page.write_text(page.read_text() + " ")
    assert metrics_docs.stale(tmp_path) == [metrics_docs.PAGE]
