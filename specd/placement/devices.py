"""List the GPUs that engines may use, with the memory that is free on each."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.core import BackendDevice
from specd.placement import cuda, pci
from specd.placement.backend_devices import DeviceKind, UsableDevice, usable_devices
from specd.placement.cpu import Cpu
from specd.placement.nvidia import Gpu, Nvml

__all__ = ["Device", "DeviceKind", "Devices", "devices"]

#: The GPUs that llama.cpp can use; None if it could not be asked.
BackendDevices = Sequence[BackendDevice] | None
#: Total and free bytes that a backend reports for a GPU that it could not open.
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU that engines may use, with its memory at one moment.

    id: its name in `core.EngineSpec.devices`: NVIDIA's UUID, or llama.cpp's name.
    index: its number among the GPUs that the daemon may use.  name: the vendor's product name.
    uuid: NVIDIA's, "" for other vendors.
    """

    vendor: str
    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    id: str = ""
    kind: DeviceKind = DeviceKind.DISCRETE


class Devices:
    """The GPUs of this machine: found once, their free memory read at every call.

    A GPU that stops answering is left out; its number stays reserved until it answers again.
    Blocks.  Safe to use from several threads.
    """

    def __init__(
        self,
        backend_devices: BackendDevices = None,
        *,
        probe_again: Callable[[], BackendDevices] = lambda: None,
        igpu: bool | None = None,
        gpus: Callable[[], list[Gpu] | None] | None = None,
        cpu: Callable[[], Cpu] = Cpu.read,
        environ: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
    ) -> None:
        """Keep the sources; no GPU is read before the first call.

        backend_devices: the result of `runner.probe`.  probe_again: probes anew, for the memory of
        GPUs whose driver does not report it.
        igpu: OLLAMA_IGPU_ENABLE; None uses integrated GPUs only if there are no others.
        gpus: returns NVML's list.  root: the folder that holds sys/.
        """
        self._backend_devices = backend_devices
        self._probe_again = probe_again
        self._igpu = igpu
        self._gpus = gpus if gpus is not None else Nvml().gpus
        self._cpu = cpu
        self._environ = environ
        self._root = root
        self._usable_devices: list[UsableDevice] = []
        self._lock = threading.Lock()

    def __call__(self) -> list[Device]:
        """Return the GPUs that answer; may start a process for a second or more."""
        with self._lock:
            return self._read()

    def driver_devices(self) -> list[Device]:
        """Return the GPUs whose driver reports their memory; starts no process."""
        with self._lock:
            return self._read(ask_backend=False)

    def is_complete(self) -> bool:
        """Return whether llama.cpp finds no other GPUs; False if neither it nor NVML answered."""
        with self._lock:
            return self._backend_devices is not None or bool(self._usable_devices)

    def unusable_gpus(self) -> list[str]:
        """Return log lines, each with a GPU that is present but not used, and why."""
        gpus, used = self._gpus() or [], self()
        shown = cuda.visible_gpus(gpus, self._environ)
        if gpus and not shown and not used:
            variable = self._environ.get(cuda.VARIABLE, "")
            return [f"{cuda.VARIABLE}={variable} hides all GPUs: models run in main memory"]
        if self._backend_devices is not None and not self._backend_devices:
            return [
                f"{gpu.name} is not used: the installed llama.cpp does not support it"
                for gpu in shown
            ]
        known = {device.id for device in used}
        return [
            f"{usable_device.name} is not used: its memory size is unknown"
            for usable_device in self._usable_devices
            if usable_device.id not in known
        ]

    def _read(self, *, ask_backend: bool = True) -> list[Device]:
        """Return the GPUs that answer.

        ask_backend: probe llama.cpp, which takes a second or more, if a driver reports no memory.
        """
        if self._backend_devices is not None and not self._backend_devices:
            return []
        gpus = self._gpus()
        if is_first := not self._usable_devices:
            self._usable_devices = self._allowed(
                usable_devices(self._backend_devices, gpus, self._environ, self._root)
            )
        present = {gpu.uuid: gpu for gpu in gpus or []}
        there = {
            index: usable_device
            for index, usable_device in enumerate(self._usable_devices)
            if not usable_device.uuid or usable_device.uuid in present
        }
        memory = {
            i: self._driver_memory(usable_device, present.get(usable_device.uuid))
            for i, usable_device in there.items()
        }
        if ask_backend and None in memory.values():
            backend_devices = self._backend_devices if is_first else self._probe_again()
            self._backend_devices = backend_devices or self._backend_devices
            probed = {o.name: (o.total_bytes, o.free_bytes) for o in self._backend_devices or ()}
            memory |= {
                i: probed.get(there[i].offer) for i, known in memory.items() if known is None
            }
        return [
            self._device(index, there[index], *known)
            for index, known in memory.items()
            if known is not None and known != _NOTHING
        ]

    def _allowed(self, found: list[UsableDevice]) -> list[UsableDevice]:
        use_integrated = self._igpu
        if use_integrated is None:
            use_integrated = all(
                usable_device.kind is DeviceKind.INTEGRATED for usable_device in found
            )
        return [
            usable_device
            for usable_device in found
            if use_integrated or usable_device.kind is DeviceKind.DISCRETE
        ]

    def _driver_memory(
        self, usable_device: UsableDevice, gpu: Gpu | None
    ) -> tuple[int, int] | None:
        """Return the driver's total and free bytes; None if it does not report them."""
        if gpu is not None and gpu.total_bytes:
            return gpu.total_bytes, gpu.free_bytes
        if usable_device.kind is DeviceKind.DISCRETE:
            return pci.memory(usable_device.bus_id, self._root)
        if gpu is not None:
            cpu = self._cpu()
            return cpu.total_bytes, cpu.available_bytes
        return None  # AMD's driver counts only the memory that was reserved at boot

    def _device(self, index: int, usable_device: UsableDevice, total: int, free: int) -> Device:
        if usable_device.kind is DeviceKind.INTEGRATED:
            cpu = self._cpu()
            total, free = min(total, cpu.total_bytes), min(free, cpu.available_bytes)
        return Device(
            vendor=usable_device.vendor,
            index=index,
            name=usable_device.name,
            uuid=usable_device.uuid,
            total_bytes=total,
            free_bytes=free,
            id=usable_device.id,
            kind=usable_device.kind,
        )


def devices() -> list[Device]:
    """Return NVIDIA's GPUs, whether or not llama.cpp can use them."""
    return Devices()()


def machine_name(devices: Sequence[Device], cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the names of processor and GPUs, joined by "; "; equal names mean equal hardware."""
    return "; ".join([cpu_name(cpuinfo), *(device.name for device in devices)])


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's product name if Linux knows it, else its architecture."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
