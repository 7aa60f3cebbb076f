"""Try permitted and forbidden operations inside the unit, and write the results to a file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

STATE = Path(os.environ["STATE_DIRECTORY"])
libc = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWUSER = 0x10000000
_PTRACE_ATTACH = 16
_SYSLOG_SIZE = 10
_SYS_MBIND = {"x86_64": 237, "aarch64": 235}


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)


def writes(folder: str) -> Callable[[], object]:
    return lambda: (Path(folder) / "probe").write_text("x")


def reads(*path: str) -> Callable[[], object]:
    return Path(*path).read_bytes


def opens(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_RDWR))


def limits_a_child() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.setitimer(signal.ITIMER_PROF, 5)

    subprocess.run(["/bin/true"], preexec_fn=limit, check=True)


def lays_memory() -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE)
    where = ctypes.addressof(ctypes.c_char.from_buffer(area))
    number = _SYS_MBIND[os.uname().machine]
    call("syscall", number, ctypes.c_void_p(where), mmap.PAGESIZE, 0, None, 0, 0)


def locks_memory() -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE)
    where = ctypes.addressof(ctypes.c_char.from_buffer(area))
    call("mlock", ctypes.c_void_p(where), mmap.PAGESIZE)


def runs_new_code() -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.close()


def uses_threads() -> None:
    threads = [threading.Thread(target=os.getpid) for _ in range(20)]
    for thread in threads:
        thread.start()
    subprocess.run([sys.executable, "-c", ""], check=True)
    for thread in threads:
        thread.join()


def knows_addresses() -> None:
    assert socket.if_nameindex()
    pointer = ctypes.c_void_p()
    call("getifaddrs", ctypes.byref(pointer))


def listens() -> None:
    with socket.create_server(("0.0.0.0", 0)):
        pass


def sets_user_bit() -> None:
    path = STATE / "setuid"
    path.touch()
    path.chmod(0o4755)


def traces() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        try:
            call("ptrace", _PTRACE_ATTACH, child.pid, None, None)
        finally:
            child.kill()


def raw_packets() -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        pass


DEEDS: dict[str, Callable[[], object]] = {
    "write its state": writes(str(STATE)),
    "write its own /tmp": writes("/tmp"),
    "limit a child": limits_a_child,
    "lay its threads on processors": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "lay its memory": lays_memory,
    "lock memory": locks_memory,
    "run code made while running": runs_new_code,
    "know this machine's addresses": knows_addresses,
    "listen to everybody": listens,
    "read /proc/meminfo": reads("/proc/meminfo"),
    "read /proc/devices": reads("/proc/devices"),
    "read /etc/os-release": reads("/usr/lib/os-release"),
    "use threads and processes": uses_threads,
    "write /etc": writes("/etc"),
    "write /usr": writes("/usr/lib"),
    "write /opt": writes("/opt"),
    "write /srv": writes("/srv"),
    "write another's state": writes("/var/lib/other"),
    "write /proc/sys": lambda: Path("/proc/sys/kernel/hostname").write_text("x"),
    "write /sys/fs/cgroup": lambda: Path("/sys/fs/cgroup/probe").mkdir(),
    "read /home": lambda: list(Path("/home").iterdir()),
    "read /root": lambda: list(Path("/root").iterdir()),
    "read a home's file": reads("/home/SOMEBODY", "secret"),
    "read root's file": reads("/root", "secret"),
    "read another's /tmp": reads("/tmp", "secret"),
    "read another's /var/tmp": reads("/var/tmp", "secret"),
    "read /etc/shadow": reads("/etc/shadow"),
    "read the kernel's log": lambda: call("klogctl", _SYSLOG_SIZE, None, 0),
    "see process 1": reads("/proc/1/cmdline"),
    "signal process 1": lambda: os.kill(1, 0),
    "trace a process": traces,
    "load a kernel module": lambda: call("init_module", b"", 0, b""),
    "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "change root": lambda: os.chroot("/tmp"),
    "have namespaces of its own": lambda: call("unshare", _CLONE_NEWUSER),
    "become root": lambda: os.setuid(0),
    "make a program that runs as its owner": sets_user_bit,
    "make a device node": lambda: os.mknod(STATE / "node", 0o020666, os.makedev(1, 3)),
    "be a real-time process": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "send raw packets": raw_packets,
    "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, 0.0),
    "name the host": lambda: socket.sethostname("x"),
    **{
        f"open /dev/{node}": opens(f"/dev/{node}")
        for node in ("nvidiactl", "nvidia-uvm", "kfd", "mem", "sda", "fuse")
    },
}


def tried(deed: Callable[[], object]) -> str:
    try:
        deed()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "yes"


def facts() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"NoNewPrivs", "CapEff", "CapBnd"}:
            yield name, value.strip()
    yield "mode of its state", f"{STATE.stat().st_mode & 0o777:o}"
    yield "leave a memory image", str(resource.getrlimit(resource.RLIMIT_CORE)[0])


def main() -> None:
    result = {name: tried(deed) for name, deed in DEEDS.items()} | dict(facts())
    (STATE / "probed.json").write_text(json.dumps(result))
    for path in ("probe", "setuid"):
        with contextlib.suppress(FileNotFoundError):
            (STATE / path).unlink()


if __name__ == "__main__":
    main()
