"""The page of all benches, its data and its pictures: where they lie in a folder of documents."""

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
    """Replace this machine's data and pictures, and render the page of all machines anew."""
    (folder / DATA).mkdir(parents=True, exist_ok=True)
    (folder / DATA / f"{found.slug}.json").write_text(found.to_json(), encoding="utf-8")
    pictures = folder / PICTURES / found.slug
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    # Several streams have neither lengths nor depths to show.
    alone = [each for each in found.report.comparisons if each.streams == 1]
    draw_plots(replace(found.report, comparisons=alone), pictures)
    (folder / PAGE).write_text(rendered(folder), encoding="utf-8")


def read_all(folder: Path) -> list[Findings]:
    """The newest first.  InvalidRequest where a file holds no findings."""
    files = sorted((folder / DATA).glob("*.json"))
    found = [Findings.of_json(file.read_text(encoding="utf-8")) for file in files]
    return sorted(found, key=lambda each: each.report.ended, reverse=True)


def rendered(folder: Path) -> str:
    """The page as the folder's data have it."""
    found = read_all(folder)
    return page(found, {each.slug: [*_pictures(folder, each)] for each in found})


def _pictures(folder: Path, found: Findings) -> Iterable[str]:
    """Names from the page's own folder on."""
    for file in sorted((folder / PICTURES / found.slug).glob("*.svg")):
        yield file.relative_to(folder).as_posix()
