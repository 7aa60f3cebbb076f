"""Render docs/benchmarks.md and the README's table from the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.targets.findings import Findings
from benchmarks.targets.judge import judge
from benchmarks.targets.verdict import Outcome, Verdict
from specd.bench.mode import PLAIN
from specd.bench.summary import format_range, format_ratio, heading, title, verdict
from specd.bench.tables import Table, mixed, overview
from specd.core import ModelMemory

BEGIN = "<!-- measured: begin (generated from docs/benchmarks/ by tools/benchmarks_page.py) -->"
END = "<!-- measured: end -->"

_INTRO = """\
<!-- Generated from docs/benchmarks/*.json by `python -m benchmarks.targets --report docs`
     and tools/benchmarks_page.py: run the bench, change nothing here. -->
# Benchmarks

{results}
```
make peer     builds llama-server from the sources of specd's own llama.cpp
make bench    measures the ten targets on this machine and renders this page
```

specd and llama-server run side by side, on the same files and prompts. Figures are compared with
their goals after rounding to the digits shown. A missed target says FAIL and the difference. The
facts below it are what the bench measured beside, such as the time outside of the models; they need
not explain the whole difference.
"""

#: Where a GPU's code paths differ from those measured on the CPU.
_PATHS = """\
- Logits: each verified row, one float per token of the vocabulary, is copied from the device to the
  host (`specd/engine/llama/context.py`). Sampling and top-k run on the host.
- Buffers: `n_gpu_layers` requests both models on the device. llama.cpp reports what each allocated
  there (`vram_bytes` of the engine's facts, in `/api/ps`). NVML reports the GPU's memory
  (`specd/placement/nvidia.py`).
- Flash attention: `OLLAMA_FLASH_ATTENTION` decides, else llama.cpp. A GPU has other kernels.
- Batch invariance: kernels for one column and for several may round differently, so that texts may
  differ where two tokens are almost equally likely (docs/speculation.md). Target 8 is defined for
  the CPU and always measured there.
- Cost by width: the engine measures it at load on the device, and draft lengths follow from it. The
  best lengths of a CPU and of a GPU may differ.
- Passes are asynchronous: the engine waits for each pass before it reads the clock.
- The history of a pair on one device is not used on another
  (`specd/engine/speculative/pair_stats.py`).
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
    """Return the page.  found: one per machine, newest first.  pictures: slug → paths from the
    page.
    """
    results = "\n".join(f"{each.where}:\n\n{result_in_words(each)}" for each in found)
    parts = [_INTRO.format(results=results or "Nothing was measured yet.\n")]
    on_cpu = [each for each in found if not each.is_on_gpu]
    on_gpu = [each for each in found if each.is_on_gpu]
    if not on_cpu:
        parts.append("## On the CPU\n\nNot measured: run `make bench`.\n")
    for each in on_cpu:
        parts += _machine(each, pictures.get(each.slug, ()))
    if not on_gpu:
        parts.append(
            "## On a GPU\n\nNot measured. These commands measure it and replace this section:\n\n"
            f"{_GPU_COMMANDS}\nIts code paths differ from the CPU's:\n"
        )
        parts.append(_PATHS)
    for each in on_gpu:
        parts += _machine(each, pictures.get(each.slug, ()))
    return "\n".join(parts)


def result_in_words(found: Findings) -> str:
    """Return a list: how fast drafting is on the machine, how many targets are met, the noise."""
    lines = []
    for mix in found.report.mixes:
        if mix.streams > 1 or mix.auto_to_plain is None:
            continue
        rivals = [f"{format_ratio(mix.auto_to_plain)} × plain decoding"]
        if mix.auto_to_peer_plain is not None:
            ratio = format_ratio(mix.auto_to_peer_plain)
            rivals.append(f"{ratio} × llama-server without a draft")
        if mix.auto_to_peer_draft is not None:
            ratio = format_ratio(mix.auto_to_peer_draft)
            rivals.append(f"{ratio} × llama-server at its best draft length of each workload")
        lines.append(f"T = {mix.temperature:g}, specd with drafts: {'; '.join(rivals)}.")
    outcomes = [each.outcome for each in judge(found)]
    n_met, n_missed = outcomes.count(Outcome.PASS), outcomes.count(Outcome.FAIL)
    lines.append(f"Of the ten targets, {n_met} are met and {n_missed} are missed.")
    lines += _plain_speeds(found)
    return "".join(f"- {line}\n" for line in lines)


def _plain_speeds(found: Findings) -> Iterator[str]:
    """Yield the range of plain speeds, which shows the noise: plain work is always the same."""
    speeds = [
        figures.tokens_per_s.median
        for each in found.report.comparisons
        if each.streams == 1 and (figures := each.of_mode(PLAIN.name)) is not None
    ]
    if speeds:
        yield (
            "The figures are noisy: plain decoding does the same work in every workload, yet ran"
            f" at {min(speeds):.0f} to {max(speeds):.0f} tokens/s. There were"
            f" {found.report.n_prompts} prompts of each workload."
        )


def _machine(found: Findings, pictures: Sequence[str]) -> Iterator[str]:
    verdicts = judge(found)
    yield f"## {found.where}\n"
    yield "\n".join(f"- {line}" for line in describe_run(found)) + "\n"
    yield "### The ten targets\n"
    yield f"{_LEGEND}\n"
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
    """Yield the device that holds a model, by llama.cpp's own report of its buffers."""
    there = f"{memory.vram_bytes / 1e6:.0f} of {memory.total_bytes / 1e6:.0f} MB"
    yield f"{who}: {there} in buffers of {memory.device}"


_LEGEND = """\
Brackets are the 90 % interval for other prompts. *auto* is the default: the controller chooses the
draft length. *k* is a fixed draft length, *n_max* llama-server's. An outcome is undecided if the
interval of a deciding figure contains the goal."""
_COLUMNS = """\
Columns of modes are multiples of plain decoding: the ratio is taken prompt by prompt, a workload's
figure is the median, and the mix's is the geometric mean. They therefore do not follow from the
speeds beside them. *Same text* counts the answers of all modes but plain, over all prompts.
"""


def _workloads(found: Findings) -> Iterator[str]:
    if any(each.modes for each in found.report.comparisons):
        yield "### Workloads\n"
        yield _COLUMNS
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
    """Return the table with all columns aligned to the left."""
    return _lines(table).replace("---:", "---")


def _table_of_ten(verdicts: Sequence[Verdict]) -> Table:
    rows = tuple(
        (str(each.number), each.what, each.goal, each.measured, _outcome(each)) for each in verdicts
    )
    return Table("The ten targets", ("#", "what", "target", "measured", ""), rows)


def _outcome(verdict: Verdict) -> str:
    return f"**{verdict.outcome}**{', undecided' if verdict.is_undecided else ''}"


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
    """Return the README's table: the ten targets on the machine that was measured last."""
    newest = next(iter(found), None)
    if newest is None:
        return f"{BEGIN}\nNothing was measured yet: run `make bench`.\n{END}"
    first, *_ = heading(newest.report)
    table = _of_words(_table_of_ten(judge(newest)))
    date = f"{newest.report.began:%Y-%m-%d}"
    words = f"{result_in_words(newest)}\n{_LEGEND}"
    return f"{BEGIN}\n{newest.where}, {date}. {first}.\n\n{words}\n\n{table}{END}"
