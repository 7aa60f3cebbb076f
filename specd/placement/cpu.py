"""What the CPU side offers this process: memory and cores, within cgroup and affinity."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Of both versions of cgroups.  Beyond memory.high the kernel slows the process down.
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")


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
        bounds = list(_memory_bounds(root))
        total = min([memory.total, *(limit for limit, _ in bounds)])
        return cls(
            total_bytes=total,
            available_bytes=min([memory.available, total, *(free for _, free in bounds)]),
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


def _memory_bounds(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left of it) of each cgroup above this process that has one."""
    for group in _cgroups(root, "memory"):
        limits = [n for name in _MEMORY_LIMITS if (n := _number(group / name)) is not None]
        if limits:
            limit = min(limits)
            used = sum(_number(group / name) or 0 for name in _MEMORY_USED)
            yield limit, min(max(limit - used + _reclaimable(group), 0), limit)


def _reclaimable(group: Path) -> int:
    """Pages of files that nobody has used for long: the kernel drops them when asked for memory."""
    stat = dict(line.partition(" ")[::2] for line in _read(group / "memory.stat").splitlines())
    # The first version counts subgroups apart, and their sum under another name.
    pages = stat.get("total_inactive_file") or stat.get("inactive_file") or "0"
    return int(pages) if pages.isdigit() else 0


def _number(path: Path) -> int | None:
    """None for "max", and where there is no such file."""
    text = _read(path)
    return int(text) if text.isdigit() else None


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
