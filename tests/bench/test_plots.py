"""Pictures of a bench; what they show was computed elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from specd import core
from specd.bench import plots
from specd.bench.report import Report
from specd.errors import InvalidRequest
from tests.bench.made import report, runs

SPEEDS = {"plain": [20.0], "k = 1": [22.0], "k = 3": [25.0], "auto": [30.0], "peer plain": [19.0]}


def made() -> Report:
    return report([*runs(SPEEDS), *runs(SPEEDS, "chat"), *runs({"plain": [2.0]}, "hostile")])


def test_three_plots_are_drawn_and_each_is_a_picture(tmp_path: Path) -> None:
    written = plots.draw_plots(made(), tmp_path)
    assert list(written.values()) == ["speed-t0-s1.svg", "acceptance-t0-s1.svg", "cost.svg"]
    for caption, name in written.items():
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")  # noqa: S314 - our own
        assert caption in (tmp_path / name).read_text(encoding="utf-8")


def test_the_same_figures_make_the_same_files(tmp_path: Path) -> None:
    texts = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        plots.draw_plots(made(), tmp_path / folder)
        texts.append([path.read_text() for path in sorted((tmp_path / folder).iterdir())])
    assert texts[0] == texts[1]


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    bare = report(runs({"plain": [20.0]}))
    bare = replace(bare, engine=replace(bare.engine, costs=core.PassCosts()))
    assert plots.draw_plots(bare, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_there_is_a_sentence_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plots.need_matplotlib()
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'specd-llm\[bench\]'"):
        plots.need_matplotlib()
