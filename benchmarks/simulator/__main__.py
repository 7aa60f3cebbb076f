"""`python -m benchmarks.simulator record|run|ideas|report`: see docs/benchmarks/simulator.md."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from benchmarks.simulator import ideas, page, report
from benchmarks.simulator.cells import CellFigures, run_cell
from benchmarks.simulator.curves import CURVES, curve
from benchmarks.simulator.engine import SimulatedEngine
from benchmarks.simulator.noisy_drafter import add_weight_noise
from benchmarks.simulator.recording import Recording
from benchmarks.simulator.situations import SITUATIONS, SituationFigures, run_situation
from specd.bench.subject import demo_subject
from specd.errors import SpecdError, StoreError

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return int(arguments.command(arguments))
    except SpecdError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    commands = parser.add_subparsers(required=True)
    record = commands.add_parser("record", help="record what a drafter drafts")
    record.set_defaults(command=_record)
    record.add_argument("--demo", action="store_true", help="the repository's own traces")
    record.add_argument("--target", type=Path, help="a GGUF; default: the demo's")
    record.add_argument("--drafter", type=Path, help="a GGUF; default: the demo's")
    record.add_argument("--noise", type=float, default=0.0, help="added to the drafter's weights")
    record.add_argument("--name", default="", help="of the trace; that of the file by default")
    record.add_argument("--out", type=Path, help="the trace to write")
    run = commands.add_parser("run", help="play one cell or situation")
    run.set_defaults(command=_run)
    run.add_argument("--trace", default=report.DRAFTERS[0], help="a recorded one, or a file")
    run.add_argument("--temperature", type=float, default=0.8)
    run.add_argument("--curve", choices=[known.name for known in CURVES], default=CURVES[0].name)
    run.add_argument("--situation", choices=sorted(SITUATIONS), help="instead of a cell")
    run.add_argument("--sessions", type=_count, default=20)
    run.add_argument("--noise", type=float, default=0.0, help="deviation of the log of each cost")
    run.add_argument("--threshold", type=float, help="acceptance threshold, instead of the default")
    idea = commands.add_parser("ideas", help="the gain of further ideas, see docs/speculation.md")
    idea.set_defaults(command=_ideas)
    idea.add_argument("--trace", action="append", help="a recorded one, or a file; all by default")
    judge = commands.add_parser("report", help="simulate everything")
    judge.set_defaults(command=_report)
    mode = judge.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the figures and the page")
    mode.add_argument("--check", action="store_true", help="fail if they differ")
    mode.add_argument("--render", action="store_true", help="write the page of the stored figures")
    judge.add_argument("--sessions", type=_count, default=200, help="of each cell")
    judge.add_argument("--situation-sessions", type=_count, default=20, help="of each situation")
    judge.add_argument("--processes", type=_count, default=1)
    return parser


def _count(text: str) -> int:
    """Return a number from 1 up.  Raises ValueError, which argparse reports."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _record(arguments: argparse.Namespace) -> int:
    demo = demo_subject()
    assert demo.drafter is not None
    if arguments.demo:
        for name, noise in report.NOISE.items():
            drafter = add_weight_noise(demo.drafter, noise) if noise else demo.drafter
            recording = Recording(target=demo.target, drafter=drafter, name=name, noise=noise)
            recording.run(print).save(report.TRACES / f"{name}.npz")
        return 0
    if arguments.out is None:
        print("error: name the file to write with --out", file=sys.stderr)
        return 2
    if not arguments.out.parent.is_dir():
        # Fail before the run, not after minutes of it.
        raise StoreError(f"{arguments.out} cannot be written: there is no such folder")
    target, drafter = arguments.target or demo.target, arguments.drafter or demo.drafter
    if arguments.noise:
        drafter = add_weight_noise(drafter, arguments.noise)
    name = arguments.name or arguments.out.stem
    recording = Recording(target=target, drafter=drafter, name=name, noise=arguments.noise)
    recording.run(print).save(arguments.out)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    trace, costs = report.trace(arguments.trace), curve(arguments.curve)
    if arguments.temperature not in trace.temperatures:
        known = ", ".join(f"{temperature:g}" for temperature in trace.temperatures)
        raise StoreError(f"{trace.name} was recorded at other temperatures: {known}")
    figures: CellFigures | SituationFigures
    if arguments.situation:
        figures = run_situation(
            arguments.situation, trace, arguments.temperature, costs, arguments.sessions
        )
    else:
        figures = run_cell(
            trace,
            arguments.temperature,
            costs,
            arguments.sessions,
            lambda number: SimulatedEngine(
                costs, threshold=arguments.threshold, noise=arguments.noise, seed=number
            ),
        )
    for field in fields(figures):
        value = getattr(figures, field.name)
        print(f"{field.name:20} {value:.3f}" if isinstance(value, float) else _line(field, value))
    return 0


def _line(field: object, value: object) -> str:
    return f"{getattr(field, 'name', ''):20} {value}"


def _ideas(arguments: argparse.Namespace) -> int:
    names = arguments.trace or report.DRAFTERS
    gains = [gain for name in names for gain in ideas.judge(report.trace(name))]
    print("\n".join(ideas.table(gains)))
    return 0


def _report(arguments: argparse.Namespace) -> int:
    if arguments.render:
        (ROOT / page.PAGE).write_text(page.render(report.read()), encoding="utf-8")
        return 0
    if arguments.check:
        return _check(report.read(), arguments.processes)
    found = report.simulate(
        arguments.sessions, arguments.situation_sessions, arguments.processes, _progress
    )
    report.write(found)
    (ROOT / page.PAGE).write_text(page.render(report.read()), encoding="utf-8")
    return 0


def _check(stored: report.Report, n_processes: int) -> int:
    """Simulate everything again and compare with the stored figures."""
    simulated = report.rounded(
        report.simulate(stored.n_sessions, stored.n_situation_sessions, n_processes, _progress)
    )
    is_same = simulated == stored and stale(ROOT) == []
    if not is_same:
        print(f"{page.PAGE} is out of date: run `python -m benchmarks.simulator report --write`")
    return 0 if is_same else 1


def stale(root: Path) -> list[Path]:
    """Return the page in a list if it differs from the stored figures."""
    path = root / page.PAGE
    is_same = path.is_file() and path.read_text("utf-8") == page.render(report.read())
    return [] if is_same else [page.PAGE]


def _progress(done: int, n_all: int) -> None:
    print(f"\r{done} of {n_all} parts", end="\n" if done == n_all else "", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
