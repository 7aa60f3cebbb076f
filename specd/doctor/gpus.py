"""Check which GPUs the machine has, and whether the installed llama.cpp can use them.

Three parts must match: the hardware (on the PCI bus), its driver (NVML, device nodes) and the build
of llama.cpp.  If one is missing, models silently run in main memory, slowly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from specd.core import BackendDevice
from specd.doctor.finding import Finding, absent, ok, problem
from specd.placement import Devices
from specd.placement.nvidia import Driver, Gpu

_TOPIC: Final = "gpu"
_NVIDIA, _AMD, _INTEL = "0x10de", "0x1002", "0x8086"
_VENDORS: Final = {_NVIDIA: "NVIDIA", _AMD: "AMD", _INTEL: "Intel"}
_BUILDS: Final = {_NVIDIA: "cuda", _AMD: "rocm", _INTEL: "vulkan"}
#: PCI classes of GPUs: display controllers, processing accelerators.
_CLASSES: Final = ("0x03", "0x12")
#: Device nodes that a process opens for a GPU; a folder stands for its entries.
_NODES: Final = {
    _NVIDIA: ("dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm"),
    _AMD: ("dev/kfd", "dev/dri"),
    _INTEL: ("dev/dri",),
}

BackendDevices = Sequence[BackendDevice] | None


def gpus(
    offered: BackendDevices,
    log_lines: Sequence[str],
    *,
    nvml: Callable[[], list[Gpu] | None],
    driver: Callable[[], Driver | None],
    igpu: bool | None,
    root: Path = Path("/"),
) -> Iterator[Finding]:
    """Yield the findings on GPUs.

    offered: the devices that llama.cpp can use.  log_lines: of llama.cpp and NVML.
    root: the parent of sys/ and dev/.
    """
    used = Devices(offered, igpu=igpu, gpus=nvml)()
    for device in used:
        free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
        where = f"{device.name} ({device.id}): {free:.1f} of {total:.1f} GiB are free"
        yield ok(_TOPIC, where)
    if known := driver():
        yield ok("driver", f"NVIDIA {known.version}, for CUDA up to {known.cuda}")
    if used:
        return
    cards = sorted(_cards(root))
    discrete = [card for card in cards if card != _INTEL]
    if not cards:
        yield absent(_TOPIC, "this machine has no GPU: models run in main memory")
    for card in discrete or cards:
        yield _unused(card, offered, log_lines, nvml() or [], root)


def _unused(
    card: str, offered: BackendDevices, log_lines: Sequence[str], found: Sequence[Gpu], root: Path
) -> Finding:
    """Return why the vendor's card is unused: the first part that is missing."""
    vendor = _VENDORS[card]
    here = f"the {vendor} GPU of this machine is not used"
    words = f" ({log_lines[-1]})" if log_lines else ""
    if closed := _closed_nodes(card, root):
        remedy = (
            "give the service's user access: `systemctl edit specd` with [Service]"
            f" SupplementaryGroups={_group_of(closed[0])}, or DeviceAllow={closed[0]} rw"
        )
        return problem(_TOPIC, f"{here}: {closed[0]} cannot be opened", remedy)
    if card == _NVIDIA and not found:
        remedy = "install NVIDIA's driver; `nvidia-smi` must list the GPU"
        return problem(_TOPIC, f"{here}: its driver does not answer{words}", remedy)
    if offered is None:
        remedy = "try again with OLLAMA_DEBUG=1; if the driver hangs, restart the machine"
        return problem(_TOPIC, f"{here}: llama.cpp does not report its devices{words}", remedy)
    if card == _INTEL:
        remedy = "for its Vulkan driver: SPECD_ACCEL=vulkan make install, and OLLAMA_IGPU_ENABLE=1"
        return ok(_TOPIC, f"{here}, which is about as fast as the CPU; to use it: {remedy}")
    remedy = f"build for it: SPECD_ACCEL={_BUILDS[card]} make install"
    if offered:
        remedy = "see OLLAMA_IGPU_ENABLE and CUDA_VISIBLE_DEVICES"
    return problem(_TOPIC, f"{here}: the installed llama.cpp cannot use it{words}", remedy)


def _cards(root: Path) -> set[str]:
    """Return the vendors of the GPUs on the bus."""
    devices = (root / "sys/bus/pci/devices").glob("*")
    gpu_devices = (device for device in devices if _read(device / "class").startswith(_CLASSES))
    return {_read(device / "vendor") for device in gpu_devices} & _VENDORS.keys()


def _closed_nodes(card: str, root: Path) -> list[Path]:
    """Return the device nodes that exist but cannot be opened; missing ones mean no driver."""
    entries = [root / name for name in _NODES[card]]
    nodes = [n for e in entries for n in (sorted(e.glob("renderD*")) if e.is_dir() else [e])]
    return [node for node in nodes if node.exists() and not os.access(node, os.R_OK | os.W_OK)]


def _group_of(node: Path) -> str:
    try:
        return node.group()
    except (KeyError, OSError):
        return "render"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
