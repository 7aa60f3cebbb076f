"""Hold all figures of the ten targets from one machine, and store them in docs/benchmarks/."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.targets.output_equality import OutputEquality
from benchmarks.targets.round_time import RoundTime
from benchmarks.targets.sampling_check import SamplingCheck
from benchmarks.targets.second_turn import SecondTurn
from specd.bench.comparison import compare
from specd.bench.mix import mixes
from specd.bench.report import Report
from specd.bench.runs import Run
from specd.errors import InvalidRequest

#: Version of the file; raise it if older files can no longer be read.
FINDINGS_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The figures of one machine.

    report: the runs of all workloads, with one and several streams.  commands: the command lines.
    llama_commit: of the engine's llama.cpp, "" if unknown.
    """

    report: Report
    commands: tuple[str, ...]
    llama_commit: str = ""
    rounds: tuple[RoundTime, ...] = ()
    sameness: tuple[OutputEquality, ...] = ()
    draws: tuple[SamplingCheck, ...] = ()
    second_turns: tuple[SecondTurn, ...] = ()

    @property
    def is_on_gpu(self) -> bool:
        return self.report.engine.target.vram_bytes > 0

    @property
    def where(self) -> str:
        """Return the machine's name for a heading; on a GPU, also the target's size and type."""
        machine, facts = self.report.machine, self.report.facts
        if self.is_on_gpu:
            name = ", ".join(machine.accelerators) or self.report.engine.target.device
            return f"{name}, {facts.n_parameters / 1e9:.1f} B {facts.file_type}"
        return f"{machine.cpu}, {self.report.spec.n_threads} threads"

    @property
    def slug(self) -> str:
        """Return the machine's name for file names."""
        return re.sub(r"[^a-z0-9]+", "-", self.where.lower()).strip("-")

    def to_json(self) -> str:
        """Return JSON without paths and derived parts; texts are stored as digests."""
        data: dict[str, Any] = msgspec.to_builtins(_bare(self), enc_hook=_encode)
        data["report"]["runs"] = [_sparse(run) for run in self.report.runs]
        return _compact({"format": FINDINGS_FORMAT, **data})

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Return the findings in the text.  Raises InvalidRequest for another format or version."""
        try:
            data = msgspec.json.decode(text, type=dict[str, Any])
            if data.pop("format", None) != FINDINGS_FORMAT:
                raise InvalidRequest("these findings are of another version: run the bench again")
            found = msgspec.convert(data, cls, dec_hook=_decode)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidRequest(f"the file holds no findings of a bench: {error}") from error
        runs = found.report.runs
        report = replace(found.report, comparisons=compare(runs), mixes=mixes(runs))
        return replace(found, report=report)


def _bare(findings: Findings) -> Findings:
    """Return the findings without paths of the machine and without derived parts."""
    report = findings.report
    subject = replace(
        report.subject,
        target=Path(report.subject.target.name),
        drafter=Path(report.subject.drafter.name) if report.subject.drafter else None,
    )
    spec = replace(
        report.spec,
        weights=subject.target.name,
        drafter=subject.drafter.name if subject.drafter else None,
    )
    peer = report.peer and replace(report.peer, program=(), usage="", environment={})
    bare = replace(
        report,
        subject=subject,
        spec=spec,
        peer=peer,
        facts=replace(report.facts, chat_template=None),
        runs=(),
        comparisons=(),
        mixes=(),
    )
    return replace(findings, report=bare)


def _sparse(run: Run) -> dict[str, Any]:
    """Return the fields of a run that differ from their defaults, with digests for texts."""
    data = msgspec.to_builtins(run)
    data["texts"] = [hashlib.sha256(text.encode()).hexdigest()[:12] for text in run.texts]
    usual = {each.name: each.default for each in fields(Run) if each.default is not MISSING}
    return {
        name: value
        for name, value in data.items()
        if name not in usual or value != msgspec.to_builtins(usual[name])
    }


def _compact(data: dict[str, Any]) -> str:
    """Return JSON with one line per run, so that a diff of two benches is readable."""
    runs: Sequence[Any] = data["report"].pop("runs")
    head = json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True)
    rows = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    marker = '"report": {'
    return head.replace(marker, f'{marker}\n"runs": [\n{rows}\n],', 1) + "\n"


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} is not a type of findings")


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"{kind} is not a type of findings")
