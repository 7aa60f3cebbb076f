"""Test the progress display of a build, on a terminal and in a log."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from scripts.progress import Progress, follow

LINES = [
    "Collecting llama-cpp-python==0.3.36\n",
    "  Running command installing build dependencies\n",
    "  Installing build dependencies: started\n",
    "  *** Configuring CMake...\n",
    "  -- [not ninja]\n",
    *(f"  [{n}/50] /usr/bin/g++ -DX -c file{n}.cpp\n" for n in range(1, 51)),
    "  *** Making wheel...\n",
]


def shown(*, live: bool) -> str:
    out = io.StringIO()
    seconds = iter(range(10_000))
    progress = Progress(out, live=live, clock=lambda: next(seconds))
    for line in LINES:
        progress.feed(line)
    progress.end()
    return out.getvalue()


def test_a_log_gets_a_line_for_each_phase_and_each_tenth() -> None:
    lines = shown(live=False).splitlines()
    assert [line.split(" (")[0].strip() for line in lines] == [
        "fetching the source",
        "preparing the build",
        "configuring",
        *(f"compiling [{n}/50] {n * 2} %" for n in range(5, 51, 5)),
        "packing the wheel",
    ]
    assert "\r" not in shown(live=False)


def test_a_terminal_gets_one_line_that_is_cleared_at_the_end() -> None:
    text = shown(live=True)
    assert "\n" not in text
    assert text.count("compiling") == 50
    assert text.endswith("\r\x1b[K")


def test_the_log_gets_the_whole_output_and_the_status_is_returned(tmp_path: Path) -> None:
    program = "import sys; print('[5/10] cc'); print('oops', file=sys.stderr); sys.exit(3)"
    log, out = tmp_path / "logs" / "build.log", io.StringIO()
    progress = Progress(out, live=False)
    assert follow([sys.executable, "-c", program], os.environ, log, progress) == 3
    assert sorted(log.read_text().splitlines()) == ["[5/10] cc", "oops"]
    assert "[5/10] 50 %" in out.getvalue()
