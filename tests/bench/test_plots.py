"""Pictures of a bench; what they show was computed elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from specd import core
from specd.bench import plots
from specd.bench.report import Report
from specd.errors import InvalidRequest
from tests.bench.report_builders import report, runs

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


WORKLOADS = ("chat", "code", "creative", "edit", "json", "qa", "summary", "files")


def axes_of(name: str) -> Axes:
    """The axes of a plot of eight workloads, by the beginning of its file's name."""
    answers = [answer for workload in WORKLOADS for answer in runs(SPEEDS, workload)]
    _, axes = plots._blank()
    draw = next(draw for _, file, draw in plots._plots(report(answers)) if file.startswith(name))
    draw(axes)
    return axes


@pytest.mark.parametrize("name", ["speed", "acceptance", "cost"])
def test_ticks_on_tokens_and_rows_are_whole(name: str) -> None:
    assert all(float(tick).is_integer() for tick in axes_of(name).get_xticks())


@pytest.mark.parametrize("name", ["speed", "acceptance"])
def test_no_two_lines_look_the_same(name: str) -> None:
    lines = axes_of(name).get_lines()
    looks = [(line.get_color(), line.get_linestyle(), line.get_linewidth()) for line in lines]
    assert len(looks) > len(WORKLOADS)
    assert len(set(looks)) == len(looks)


def test_a_name_has_the_colour_of_its_line_and_a_line_to_its_end() -> None:
    axes = axes_of("speed")
    names = {text.get_text(): text for text in axes.texts}
    assert set(names) == set(WORKLOADS)
    for words, name in names.items():
        assert isinstance(name, Annotation)
        assert name.arrow_patch is not None, words
        ends = [
            (*(float(each) for each in (x[-1], y[-1])), line.get_color())
            for line in axes.get_lines()
            for x, y in [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))]
        ]
        assert (*map(float, name.xy), name.get_color()) in ends


@pytest.mark.parametrize(
    "wanted,heights",
    [
        ({"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 3.0}),
        ({"a": 2.0, "b": 2.0}, {"a": 1.5, "b": 2.5}),
        ({"a": 2.5, "b": 2.0, "c": 9.0}, {"b": 1.75, "a": 2.75, "c": 9.0}),
        ({"a": 5.0, "b": 5.0, "c": 6.2}, {"a": 4.4, "b": 5.4, "c": 6.4}),
        ({"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 1.0}),
        ({}, {}),
    ],
)
def test_names_that_would_touch_move_apart_around_their_lines(
    wanted: dict[str, float], heights: dict[str, float]
) -> None:
    assert plots.spread(wanted, 1.0) == pytest.approx(heights)
