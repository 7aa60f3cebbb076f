"""Test the plots of a bench."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from matplotlib.axes import Axes

from specd import core
from specd.bench import plots
from specd.bench.report import Report
from specd.errors import InvalidRequest
from tests.bench.report_builders import report, runs

SPEEDS = {"plain": [20.0], "k = 1": [22.0], "k = 3": [25.0], "auto": [30.0], "peer plain": [19.0]}


def made() -> Report:
    return report([*runs(SPEEDS), *runs(SPEEDS, "chat"), *runs({"plain": [2.0]}, "hostile")])


def test_three_plots_are_written_as_svg(tmp_path: Path) -> None:
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


def test_no_plot_is_drawn_without_measurements(tmp_path: Path) -> None:
    bare = report(runs({"plain": [20.0]}))
    bare = replace(bare, engine=replace(bare.engine, costs=core.PassCosts()))
    assert plots.draw_plots(bare, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plots.need_matplotlib()
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'specd-llm\[bench\]'"):
        plots.need_matplotlib()


WORKLOADS = ("chat", "code", "creative", "edit", "json", "qa", "summary", "files")


def axes_of(name: str) -> Axes:
    """Return the axes of the plot of eight workloads whose file name starts with `name`."""
    answers = [answer for workload in WORKLOADS for answer in runs(SPEEDS, workload)]
    _, axes = plots.new_axes()
    draw = next(draw for _, file, draw in plots.plots_of(report(answers)) if file.startswith(name))
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


def test_the_legend_names_each_workload_in_the_colour_of_its_line() -> None:
    legend = axes_of("speed").get_legend()
    assert legend is not None
    shown = zip(legend.get_texts(), legend.get_lines(), strict=True)
    colours = {text.get_text(): line.get_color() for text, line in shown}
    drawn = {str(line.get_label()): line.get_color() for line in axes_of("speed").get_lines()}
    assert set(WORKLOADS) < set(colours)
    assert all(drawn[name] == colour for name, colour in colours.items())
