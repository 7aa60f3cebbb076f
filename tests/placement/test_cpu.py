"""Check the CPU facts with a fake /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specd.placement import Cpu


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_this_machine_has_memory_and_a_core() -> None:
    cpu = Cpu.read()
    assert 0 < cpu.available_bytes <= cpu.total_bytes
    assert 1 <= cpu.n_cores <= (os.cpu_count() or 1)


def test_the_tightest_cgroup_above_the_process_limits_memory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/specd.service",
            "sys/fs/cgroup/system.slice/memory.max": "1000",
            "sys/fs/cgroup/system.slice/specd.service/memory.max": "max",
        },
    )
    cpu = Cpu.read(tmp_path)
    assert cpu.total_bytes == 1000
    assert cpu.available_bytes <= 1000


def test_a_limit_of_the_first_cgroup_version_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/x",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "2000",
        },
    )
    assert Cpu.read(tmp_path).total_bytes == 2000


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/specd",
            "sys/fs/cgroup/specd/memory.max": "10000",
            "sys/fs/cgroup/specd/memory.current": "7000",
            "sys/fs/cgroup/specd/memory.stat": "anon 4000\nfile 3000\ninactive_file 2000",
        },
        {
            "proc/self/cgroup": "4:memory:/x",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "10000",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "7000",
            "sys/fs/cgroup/memory/x/memory.stat": "inactive_file 0\ntotal_inactive_file 2000",
        },
    ],
)
def test_memory_of_a_cgroup_is_not_free_except_for_inactive_file_pages(
    tmp_path: Path, files: dict[str, str]
) -> None:
    write(tmp_path, files)
    cpu = Cpu.read(tmp_path)
    assert (cpu.total_bytes, cpu.available_bytes) == (10000, 5000)


def test_the_fullest_cgroup_above_the_process_counts(tmp_path: Path) -> None:
    slice_, service = "sys/fs/cgroup/s.slice", "sys/fs/cgroup/s.slice/specd.service"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/s.slice/specd.service",
            f"{slice_}/memory.max": "9000",
            f"{slice_}/memory.current": "8000",
            f"{service}/memory.max": "6000",
            f"{service}/memory.current": "100",
        },
    )
    cpu = Cpu.read(tmp_path)
    assert (cpu.total_bytes, cpu.available_bytes) == (6000, 1000)


@pytest.mark.parametrize("used, available", [("0", 500), ("9000", 0), ("", 500)])
def test_available_memory_is_between_zero_and_the_limit(
    tmp_path: Path, used: str, available: int
) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": "max",
            "sys/fs/cgroup/memory.high": "500",
            "sys/fs/cgroup/memory.current": used,
            "sys/fs/cgroup/memory.stat": "inactive_file 200",
        },
    )
    assert Cpu.read(tmp_path).available_bytes == available


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(tmp_path, {f"{folder}/physical_package_id": "0", f"{folder}/core_id": "0"})
    assert Cpu.read(tmp_path).n_cores == 1


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": "50000 100000"},
        {
            "proc/self/cgroup": "1:cpu:/a",
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        },
    ],
)
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_a_quota_of_one_core_is_one_core(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert Cpu.read(tmp_path).n_cores == 1
