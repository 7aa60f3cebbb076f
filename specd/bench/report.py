"""The result of a bench: runs, comparisons and the conditions they were measured under."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from typing import Any, Self

import specd
from specd import core
from specd.bench.comparison import Comparison
from specd.bench.mix import Mix
from specd.bench.mode import Mode
from specd.bench.peer import PeerBinary
from specd.bench.runs import Run
from specd.bench.subject import Subject
from specd.placement import Cpu, Devices, cpu_name
from specd.runner import probe
from specd.store.gguf_metadata import GgufMetadata

#: Version of the JSON file; raise it when a reader would have to change.
JSON_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInfo:
    """The machine and versions.  load_average: runnable tasks over the last minute."""

    cpu: str
    n_cores: int
    memory_bytes: int
    accelerators: tuple[str, ...]
    system: str
    python: str
    specd: str
    llama_cpp_python: str
    load_average: float

    @classmethod
    def read(cls) -> Self:
        cpu = Cpu.read()
        return cls(
            cpu=cpu_name(),
            n_cores=cpu.n_cores,
            memory_bytes=cpu.total_bytes,
            accelerators=tuple(device.name for device in Devices(probe())()),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            specd=specd.__version__,
            llama_cpp_python=metadata.version("llama-cpp-python"),
            load_average=os.getloadavg()[0],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a bench.

    began, ended: with time zone.  facts: the target's metadata.  notes: what was left out, and why.
    """

    subject: Subject
    spec: core.EngineSpec
    engine: core.EngineFacts
    facts: GgufMetadata
    machine: MachineInfo
    workloads: Sequence[str]
    n_prompts: int
    n_repeats: int
    n_tokens: int
    began: datetime
    ended: datetime
    load_average_after: float
    runs: Sequence[Run]
    comparisons: Sequence[Comparison]
    mixes: Sequence[Mix]
    peer: PeerBinary | None = None
    notes: Sequence[str] = ()

    def parts(self) -> Iterator[tuple[float, int, list[Comparison], Mix | None]]:
        """Yield (temperature, streams, comparisons, their mix or None)."""
        keys = dict.fromkeys((each.temperature, each.streams) for each in self.comparisons)
        for key in keys:
            belong = [each for each in self.comparisons if (each.temperature, each.streams) == key]
            mix = next((m for m in self.mixes if (m.temperature, m.streams) == key), None)
            yield *key, belong, mix


def to_json(report: Report) -> Mapping[str, Any]:
    """Return the report as JSON's types, with every run; a mode is its name."""
    return {
        "format": JSON_FORMAT,
        "began": report.began.isoformat(),
        "ended": report.ended.isoformat(),
        "load_average_after": report.load_average_after,
        "machine": asdict(report.machine),
        "subject": {
            "name": report.subject.name,
            "synthetic": report.subject.padded,
            "target": report.subject.target.name,
            "n_parameters": report.facts.n_parameters,
            "file_type": report.facts.file_type,
            "drafter": report.subject.drafter_name,
        },
        "engine": asdict(report.engine),
        "peer": None
        if report.peer is None
        else {"build": report.peer.build, "same_build": report.peer.same_build},
        "spec": {
            key: value
            for key, value in asdict(report.spec).items()
            if key not in {"weights", "drafter"}  # paths of one machine
        },
        "asked": {
            "workloads": list(report.workloads),
            "n_prompts": report.n_prompts,
            "n_repeats": report.n_repeats,
            "n_tokens": report.n_tokens,
        },
        "notes": list(report.notes),
        "mixes": [_plain(mix) for mix in report.mixes],
        "comparisons": [_plain(comparison) for comparison in report.comparisons],
        "runs": [_plain(run) | {"tokens_per_s": run.tokens_per_s} for run in report.runs],
    }


def _plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as JSON's types."""
    return {name: _value(getattr(record, name)) for name in record.__dataclass_fields__}


def _value(value: Any) -> Any:
    if isinstance(value, Mode):
        return value.name
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    return _plain(value) if hasattr(value, "__dataclass_fields__") else value
