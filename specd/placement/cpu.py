"""Read the main memory and the cores that cgroup and affinity leave to this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

#: File names of cgroups v2 and v1.  Beyond memory.high the kernel slows the process down.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The main memory and the cores that this process may use.

    n_cores: physical cores; a second thread per core gains nothing.
    """

    total_bytes: int
    available_bytes: int
    n_cores: int

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cpu:
        """Return the values of this moment.  root: the folder that holds proc/ and sys/."""
        memory = psutil.virtual_memory()
        bounds = list(_memory_bounds(root))
        total = min([memory.total, *(limit for limit, _ in bounds)])
        return cls(
            total_bytes=total,
            available_bytes=min([memory.available, total, *(free for _, free in bounds)]),
            n_cores=_n_cores(root),
        )


def _n_cores(root: Path) -> int:
    """Return the number of cores in the affinity mask, at most the cgroup's quota; at least 1."""
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
    """Return the cores that each cgroup above this process allows, rounded up."""
    quotas = []
    for group in _cgroups(root, "cpu"):
        words = _read(group / "cpu.max").split() or [
            _read(group / "cpu.cfs_quota_us"),
            _read(group / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            quotas.append(math.ceil(int(words[0]) / int(words[1])))
    return [*quotas, 2**16]  # never empty: `min` takes it


def _memory_bounds(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, free part of it) in bytes for each cgroup above this process with a limit."""
    for group in _cgroups(root, "memory"):
        limits = [n for name in _MEMORY_LIMITS if (n := _number(group / name)) is not None]
        if limits:
            limit = min(limits)
            used = sum(_number(group / name) or 0 for name in _MEMORY_USED)
            yield limit, min(max(limit - used + _reclaimable(group), 0), limit)


def _reclaimable(group: Path) -> int:
    """Return the bytes of inactive file pages, which the kernel drops when memory runs short."""
    stat = dict(line.partition(" ")[::2] for line in _read(group / "memory.stat").splitlines())
    # cgroups v1 counts subgroups separately and has their sum under another name.
    pages = stat.get("total_inactive_file") or stat.get("inactive_file") or "0"
    return int(pages) if pages.isdigit() else 0


def _number(path: Path) -> int | None:
    """Return the number in the file; None for "max" or a missing file."""
    text = _read(path)
    return int(text) if text.isdigit() else None


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the process's group of a controller and all above it (cgroup v2, or v1's mount)."""
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
