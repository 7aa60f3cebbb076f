"""Test the permissions of the unit with a probe program and with the daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.container import SystemdContainer, reason_unavailable, specd_container

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PROBE = Path(__file__).with_name("probe.py")
STATE = "/var/lib/specd"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the probe's results: operation → "yes", or the error's name.

    The probe runs before the daemon in the same unit, with the same restrictions.
    """
    if why_not := reason_unavailable():
        pytest.skip(why_not)
    with specd_container(tmp_path_factory.mktemp("probed")) as container:
        prepare(container)
        container.write("/opt/probe.py", PROBE.read_text(encoding="utf-8"))
        container.drop_in("specd", "[Service]\nExecStartPre=/opt/specd/bin/python /opt/probe.py\n")
        container("systemctl", "start", "specd")
        yield json.loads(container("cat", f"{STATE}/probed.json"))


def prepare(container: SystemdContainer) -> None:
    """Create secrets of other users, and device nodes of missing GPUs."""
    script = """
        mkdir -p /home/SOMEBODY /srv /var/lib/other
        chmod 755 /root /home/SOMEBODY
        for d in /home/SOMEBODY /root /tmp /var/tmp; do
            echo secret >$d/secret
            chmod 644 $d/secret
        done
        chmod 777 /srv /var/lib/other /opt
        mknod -m 666 /dev/nvidiactl c 195 255
        mknod -m 666 /dev/nvidia-uvm c 511 0
        mknod -m 666 /dev/kfd c 510 0
        mknod -m 666 /dev/mem c 1 1
        mknod -m 666 /dev/sda b 8 0
        mknod -m 666 /dev/fuse c 10 229
    """
    container("sh", "-ec", script)


@pytest.mark.parametrize(
    "deed",
    [
        "write its state",
        "write its own /tmp",
        "limit a child",
        "lay its threads on processors",
        "lay its memory",
        "lock memory",
        "run code made while running",
        "know this machine's addresses",
        "listen to everybody",
        "read /proc/meminfo",
        "read /proc/devices",
        "read /etc/os-release",
        "use threads and processes",
    ],
)
def test_what_the_daemon_needs_is_allowed(tried: dict[str, str], deed: str) -> None:
    assert tried[deed] == "yes"


@pytest.mark.parametrize("node", ["nvidiactl", "nvidia-uvm", "kfd"])
def test_gpu_device_nodes_can_be_opened(tried: dict[str, str], node: str) -> None:
    """This machine has no driver, so ENXIO and ENODEV pass too."""
    assert tried[f"open /dev/{node}"] in {"yes", "ENXIO", "ENODEV"}


@pytest.mark.parametrize("node", ["mem", "sda", "fuse"])
def test_other_device_nodes_cannot_be_opened(tried: dict[str, str], node: str) -> None:
    assert tried[f"open /dev/{node}"] == "EPERM"


@pytest.mark.parametrize(
    "deed,error",
    [
        ("write /etc", {"EROFS", "EACCES"}),
        ("write /usr", {"EROFS"}),
        ("write /opt", {"EROFS"}),
        ("write /srv", {"EROFS"}),
        ("write another's state", {"EROFS"}),
        ("write /proc/sys", {"EROFS", "EACCES"}),
        ("write /sys/fs/cgroup", {"EROFS", "EACCES"}),
        ("read /home", {"EACCES"}),
        ("read /root", {"EACCES"}),
        ("read a home's file", {"EACCES", "ENOENT"}),
        ("read root's file", {"EACCES", "ENOENT"}),
        ("read another's /tmp", {"ENOENT"}),
        ("read another's /var/tmp", {"ENOENT"}),
        ("read /etc/shadow", {"EACCES"}),
        ("read the kernel's log", {"EPERM", "ENOENT", "EACCES"}),
        ("see process 1", {"ENOENT"}),
        ("signal process 1", {"EPERM"}),
        ("trace a process", {"EPERM"}),
        ("load a kernel module", {"EPERM"}),
        ("mount", {"EPERM"}),
        ("change root", {"EPERM"}),
        ("have namespaces of its own", {"EPERM"}),
        ("become root", {"EPERM"}),
        ("make a program that runs as its owner", {"EPERM"}),
        ("make a device node", {"EPERM"}),
        ("be a real-time process", {"EPERM"}),
        ("send raw packets", {"EAFNOSUPPORT", "EPERM"}),
        ("set the clock", {"EPERM"}),
        ("name the host", {"EPERM"}),
        ("leave a memory image", {"0"}),
    ],
)
def test_what_the_daemon_does_not_need_is_denied(
    tried: dict[str, str], deed: str, error: set[str]
) -> None:
    assert tried[deed] in error


def test_other_users_cannot_read_the_state_folder(tried: dict[str, str]) -> None:
    assert tried["mode of its state"] == "750"


def test_a_setuid_program_gains_no_privileges(tried: dict[str, str]) -> None:
    assert tried["NoNewPrivs"] == "1"
    assert int(tried["CapEff"], 16) == int(tried["CapBnd"], 16) == 0
