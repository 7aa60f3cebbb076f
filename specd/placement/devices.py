"""The GPUs that engines may use, and how much of each is free just now."""

from __future__ import annotations

import os
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

#: What llama.cpp can use; None where that cannot be found out.
BackendDevices = Sequence[BackendDevice] | None
#: Total and free bytes of a GPU that its backend could not open.
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """id: what `core.EngineSpec.devices` names it by: NVIDIA's UUID, else llama.cpp's name.

    index: its number among those that the daemon may use.  name: what the vendor calls it.
    uuid: NVIDIA's, "" with others.
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
    """Which GPUs there are is found out once, how much of each is free at every question.

    One that stops answering is left out, and keeps its number until it answers again.
    Blocks; safe to use from several threads.
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
        """offered: by `runner.probe`.  ask_again: the same anew, where nobody else tells of memory.

        igpu: OLLAMA_IGPU_ENABLE; None uses integrated GPUs where there are no others.
        gpus: NVML's.  root: where sys/ lies.
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
        with self._lock:
            return self._read()

    def driver_devices(self) -> list[Device]:
        """Those of whose memory the driver tells, which costs next to nothing."""
        with self._lock:
            return self._read(ask_backend=False)

    def is_complete(self) -> bool:
        """Whether llama.cpp will find no others: False where it did not say, nor NVML of any."""
        with self._lock:
            return self._backend_devices is not None or bool(self._usable_devices)

    def unusable_gpus(self) -> list[str]:
        """Of GPUs that are there and of no use, and why: sentences for the log."""
        gpus, used = self._gpus() or [], self()
        shown = cuda.visible_gpus(gpus, self._environ)
        if gpus and not shown and not used:
            variable = self._environ.get(cuda.VARIABLE, "")
            return [f"{cuda.VARIABLE}={variable} hides all GPUs: models lie in main memory"]
        if self._backend_devices is not None and not self._backend_devices:
            return [
                f"{gpu.name} is not used: the llama.cpp that is installed cannot use it"
                for gpu in shown
            ]
        known = {device.id for device in used}
        return [
            f"{usable_device.name} is not used: how much memory it has is not known"
            for usable_device in self._usable_devices
            if usable_device.id not in known
        ]

    def _read(self, *, ask_backend: bool = True) -> list[Device]:
        """patient: of whom the driver does not tell, an engine is asked, for a second or more."""
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
            said = {o.name: (o.total_bytes, o.free_bytes) for o in self._backend_devices or ()}
            memory |= {
                i: said.get(there[i].offer)
                for i, driver_devices in memory.items()
                if driver_devices is None
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
        """Total and free bytes by the driver, which costs nothing; None where it keeps silent."""
        if gpu is not None and gpu.total_bytes:
            return gpu.total_bytes, gpu.free_bytes
        if usable_device.kind is DeviceKind.DISCRETE:
            return pci.memory(usable_device.bus_id, self._root)
        if gpu is not None:
            cpu = self._cpu()
            return cpu.total_bytes, cpu.available_bytes
        return None  # AMD's driver counts but what was set aside when the machine started

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
    """NVIDIA's alone, whether or not llama.cpp can use them."""
    return Devices()()
