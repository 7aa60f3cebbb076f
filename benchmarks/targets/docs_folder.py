"""Write the data, plots and page of all benches into a folder of documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.targets.findings import Findings
from benchmarks.targets.page import page
from specd.bench.plots import draw_plots

PAGE = "benchmarks.md"
DATA = "benchmarks"
PICTURES = "images"


def write_docs(found: Findings, folder: Path) -> None:
    """Replace this machine's data and plots, and render the page of all machines."""
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    (folder / DATA / f"{found.slug}.json").write_text(found.to_json(), encoding="utf-8")
    pictures = folder / PICTURES / found.slug
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    # Runs with several streams have no lengths or depths to plot.
    alone = [each for each in found.report.comparisons if each.streams == 1]
    draw_plots(replace(found.report, comparisons=alone), pictures)
    (folder / PAGE).write_text(rendered(folder), encoding="utf-8")


def read_all(folder: Path) -> list[Findings]:
    """Return all findings, newest first.  Raises InvalidRequest for a file without findings."""
    files = sorted((folder / DATA).glob("*.json"))
    found = [Findings.of_json(file.read_text(encoding="utf-8")) for file in files]
    return sorted(found, key=lambda each: each.report.ended, reverse=True)


def rendered(folder: Path) -> str:
    """Return the page for the folder's data."""
    found = read_all(folder)
    return page(found, {each.slug: [*_pictures(folder, each)] for each in found})


def _pictures(folder: Path, found: Findings) -> Iterable[str]:
    """Yield the plots' paths relative to the page."""
    for file in sorted((folder / PICTURES / found.slug).glob("*.svg")):
        yield file.relative_to(folder).as_posix()
