"""docs/benchmarks.md and the README's table: every figure from the findings, none typed by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.verdict import Verdict
from specd.bench.summary import format_range, heading, title, verdict
from specd.bench.tables import Table, mixed, overview
from specd.core import ModelMemory

BEGIN = "<!-- measured: begin (generated from docs/benchmarks/ by scripts/benchmarks_page.py) -->"
END = "<!-- measured: end -->"

_INTRO = """\
<!-- Generated from docs/benchmarks/*.json by `python -m benchmarks.targets --report docs`
     and scripts/benchmarks_page.py: run the bench, change nothing here. -->
# Benchmarks

The ten targets of the design, each measured side by side in one run, with all that the figures mean
nothing without. `make peer` builds llama-server from the sources of specd's own llama.cpp, and
`make bench` measures everything again on the machine at hand, prints it and renders this page.
Figures are held against their goals with the digits that are shown. A target that was missed says
FAIL, by how much, and what the bench knows of the cause.
"""

#: Where a GPU takes another path than what was measured on the CPU.
_PATHS = """\
- Logits: every row that is judged is copied from the device to the host, a whole vocabulary of
  floats (`engine/llama/context.py`); nothing is sampled, and no top-k taken, on the device.
- Buffers: `n_gpu_layers` asks for both models on the device. What each took there is what llama.cpp
  says while it allocates (`vram_bytes` of the engine's facts, in `/api/ps`); what the GPU has is
  what NVML says (`placement/nvidia.py`).
- Flash attention: llama.cpp decides unless `OLLAMA_FLASH_ATTENTION` does, and its kernels on a GPU
  are others.
- Batch invariance: kernels for one column and for several may differ, so that texts may part at
  near ties (docs/speculation.md). Target 8 is defined for the CPU, and always measured there.
- Cost by width: it is measured at load on whatever device there is, and lengths follow from it; the
  lengths that suit the steps of a CPU's kernels need not suit a GPU's.
- Passes are asynchronous: the engine waits for each one before it takes its time.
- What was learned of a pair on one device is not believed on another
  (`engine/history_reporter.py`).
"""
_GPU_COMMANDS = """\
```
SPECD_ACCEL=cuda make install    # llama.cpp with CMAKE_ARGS="-DGGML_CUDA=on"
make peer
.venv/bin/python -m benchmarks.targets --target-size 8b --report docs
.venv/bin/python -m benchmarks.targets --target-size 8b --target-type Q4_0 --report docs
```
"""


def page(found: Sequence[Findings], pictures: Mapping[str, Sequence[str]]) -> str:
    """found: one per machine, the newest first.  pictures: slug → files, from the page on."""
    parts = [_INTRO]
    on_cpu = [each for each in found if not each.is_on_gpu]
    on_gpu = [each for each in found if each.is_on_gpu]
    if not on_cpu:
        parts.append("## On the CPU\n\nNot measured: `make bench` does it.\n")
    for each in on_cpu:
        parts += _machine(each, pictures.get(each.slug, ()))
    if not on_gpu:
        parts.append(
            "## On a GPU\n\nNot measured: none was at hand. Where its code paths differ:\n\n"
            f"{_PATHS}\nThese commands measure it, and put its section in the place of this one:\n"
        )
        parts.append(_GPU_COMMANDS)
    for each in on_gpu:
        parts += _machine(each, pictures.get(each.slug, ()))
    return "\n".join(parts)


def _machine(found: Findings, pictures: Sequence[str]) -> Iterator[str]:
    verdicts = judge(found)
    yield f"## {found.where}\n"
    yield "\n".join(f"- {line}" for line in describe_run(found)) + "\n"
    yield "### The ten targets\n"
    yield _of_words(_table_of_ten(verdicts))
    for each in verdicts:
        notes = [f"- {note}" for note in each.notes()]
        if notes:
            yield f"**{each.number}. {each.what}: {each.outcome}**\n"
            yield "\n".join(notes) + "\n"
    yield from _workloads(found)
    if found.rounds:
        yield "### Time per round outside of llama.cpp\n"
        yield _lines(_rounds(found))
    yield "### Cost of a target pass by its rows\n"
    yield _lines(_costs(found))
    for picture in pictures:
        words = picture.rpartition("/")[2].removesuffix(".svg").replace("-", " ")
        yield f"![{words}]({picture})\n"


def describe_run(found: Findings) -> Iterator[str]:
    """Yield lines that say what was measured, where, with what and by which commands."""
    yield from heading(found.report)
    if found.llama_commit:
        yield f"llama.cpp of the engine: commit {found.llama_commit}"
    report = found.report
    minutes = (report.ended - report.began).total_seconds() / 60
    yield f"The workloads took {minutes:.1f} min"
    if found.is_on_gpu:
        yield from _on_device("Target", report.engine.target)
        if report.engine.drafter is not None:
            yield from _on_device("Drafter", report.engine.drafter)
    yield f"Commands: {'; '.join(f'`{command}`' for command in found.commands)}"


def _on_device(who: str, memory: ModelMemory) -> Iterator[str]:
    """The proof of where a model lies, as llama.cpp told of its buffers."""
    there = f"{memory.vram_bytes / 1e6:.0f} of {memory.total_bytes / 1e6:.0f} MB"
    yield f"{who}: {there} in buffers of {memory.device}"


def _workloads(found: Findings) -> Iterator[str]:
    for temperature, streams, compared, mix in found.report.parts():
        name = title(temperature, streams)
        known = [each for each in compared if each.modes]
        if not known:
            continue
        yield f"### {name.capitalize()}\n"
        yield _lines(overview(name, known, mix))
        if mix is not None and len(mix.workloads) > 1:
            yield _lines(mixed(f"{name}, all workloads", mix))
        yield "\n".join(f"- {line}" for line in verdict(found.report, known, mix)) + "\n"


def _lines(table: Table) -> str:
    return "\n".join(table.markdown()) + "\n"


def _of_words(table: Table) -> str:
    """Columns of words begin on the left."""
    return _lines(table).replace("---:", "---")


def _table_of_ten(verdicts: Sequence[Verdict]) -> Table:
    rows = tuple(
        (str(each.number), each.what, each.goal, each.measured, f"**{each.outcome}**")
        for each in verdicts
    )
    return Table("The ten targets", ("#", "what", "target", "measured", ""), rows)


def _rounds(found: Findings) -> Table:
    rows = tuple(
        (
            f"{each.slots}, T = {each.temperature:g}, {each.mode}",
            format_range(each.overhead_ms),
            f"{each.round_ms:.2f}",
            f"{each.tokens_per_round:.2f}",
            str(each.n_requests),
        )
        for each in found.rounds
    )
    headers = ("slots, temperature, mode", "ms outside", "ms of the round", "tokens", "requests")
    return Table("Time per round", headers, rows)


def _costs(found: Findings) -> Table:
    costs = found.report.engine.costs
    plain = dict(costs.target_s).get(1)
    rows = [
        (str(width), f"{seconds * 1e3:.2f}", f"{seconds / plain:.2f}" if plain else "–")
        for width, seconds in costs.target_s
    ]
    rows.append(("one drafted token", f"{costs.draft_step_s * 1e3:.2f}", "–"))
    return Table("Costs", ("rows", "ms", "÷ one row"), tuple(rows))


# --------------------------------------------------------------------------- the README


def readme_table(found: Sequence[Findings]) -> str:
    """The ten targets on the machine that was measured last, between the README's markers."""
    newest = next(iter(found), None)
    if newest is None:
        return f"{BEGIN}\nNothing was measured yet: `make bench` does it.\n{END}"
    first, *_ = heading(newest.report)
    table = _of_words(_table_of_ten(judge(newest)))
    date = f"{newest.report.began:%Y-%m-%d}"
    return f"{BEGIN}\n{newest.where}, {date}. {first}.\n\n{table}{END}"
