"""What the CPU side offers this process: memory and cores, within cgroup and affinity."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """n_cores: physical cores this process may run on; a second thread per core does not pay."""

    total_bytes: int
    available_bytes: int
    n_cores: int

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cpu:
        """root: where proc/ and sys/ lie."""
        memory = psutil.virtual_memory()
        limit = min(_numbers(root, "memory", ("memory.max", "memory.limit_in_bytes")), default=None)
        total = memory.total if limit is None else min(memory.total, limit)
        return cls(
            total_bytes=total,
            available_bytes=min(memory.available, total),
            n_cores=_n_cores(root),
        )


def _n_cores(root: Path) -> int:
    """Distinct cores of the affinity mask, cut to the cgroup's quota; at least 1."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS has no affinity
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    topology = root / "sys/devices/system/cpu"
    cores = {_core(topology / f"cpu{cpu}" / "topology", cpu) for cpu in allowed}
    return max(1, min(len(cores), *_quotas(root), len(allowed)))


def _core(topology: Path, cpu: int) -> tuple[str, str]:
    package, core = (_read(topology / name) for name in ("physical_package_id", "core_id"))
    return (package, core) if package and core else ("cpu", str(cpu))


def _quotas(root: Path) -> list[int]:
    """Whole cores that each cgroup above this process allows."""
    quotas = []
    for group in _cgroups(root, "cpu"):
        words = _read(group / "cpu.max").split() or [
            _read(group / "cpu.cfs_quota_us"),
            _read(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            quotas.append(math.ceil(int(words[0]) / int(words[1])))
    return [*quotas, 2**16]  # never empty: `min` takes it


def _numbers(root: Path, controller: str, names: tuple[str, ...]) -> Iterator[int]:
    for group in _cgroups(root, controller):
        for name in names:
            if (text := _read(group / name)).isdigit():
                yield int(text)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The process's own group of a controller and all above it (cgroup v2, or v1's mount)."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = mount / path.strip("/")
        yield from (g for g in (group, *group.parents) if g == mount or mount in g.parents)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
