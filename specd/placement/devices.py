"""The GPUs that engines may use, and how much of each is free just now."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.core import BackendDevice
from specd.placement import cuda, pci
from specd.placement.cpu import Cpu
from specd.placement.nvidia import Gpu, Nvml
from specd.placement.seats import Kind, Seat, seats

__all__ = ["Device", "Devices", "Kind", "devices"]

#: What llama.cpp can use; None where that cannot be found out.
Offered = Sequence[BackendDevice] | None
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
    kind: Kind = Kind.DISCRETE


class Devices:
    """Which GPUs there are is found out once, how much of each is free at every question.

    One that stops answering is left out, and keeps its number until it answers again.
    Blocks; safe to use from several threads.
    """

    def __init__(
        self,
        offered: Offered = None,
        *,
        ask_again: Callable[[], Offered] = lambda: None,
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
        self._offered = offered
        self._ask_again = ask_again
        self._igpu = igpu
        self._gpus = gpus if gpus is not None else Nvml().gpus
        self._cpu = cpu
        self._environ = environ
        self._root = root
        self._seats: list[Seat] = []
        self._lock = threading.Lock()

    def __call__(self) -> list[Device]:
        with self._lock:
            return self._read()

    def told(self) -> list[Device]:
        """Those of whose memory the driver tells, which costs next to nothing."""
        with self._lock:
            return self._read(patient=False)

    def are_all(self) -> bool:
        """Whether llama.cpp will find no others: False where it did not say, nor NVML of any."""
        with self._lock:
            return self._offered is not None or bool(self._seats)

    def complaints(self) -> list[str]:
        """Of GPUs that are there and of no use, and why: sentences for the log."""
        gpus, used = self._gpus() or [], self()
        shown = cuda.visible(gpus, self._environ)
        if gpus and not shown and not used:
            variable = self._environ.get(cuda.VARIABLE, "")
            return [f"{cuda.VARIABLE}={variable} hides all GPUs: models lie in main memory"]
        if self._offered is not None and not self._offered:
            return [
                f"{gpu.name} is not used: the llama.cpp that is installed cannot use it"
                for gpu in shown
            ]
        known = {device.id for device in used}
        return [
            f"{seat.name} is not used: how much memory it has is not known"
            for seat in self._seats
            if seat.id not in known
        ]

    def _read(self, *, patient: bool = True) -> list[Device]:
        """patient: of whom the driver does not tell, an engine is asked, for a second or more."""
        if self._offered is not None and not self._offered:
            return []
        gpus = self._gpus()
        if is_first := not self._seats:
            self._seats = self._allowed(seats(self._offered, gpus, self._environ, self._root))
        present = {gpu.uuid: gpu for gpu in gpus or []}
        there = {
            index: seat
            for index, seat in enumerate(self._seats)
            if not seat.uuid or seat.uuid in present
        }
        memory = {i: self._told(seat, present.get(seat.uuid)) for i, seat in there.items()}
        if patient and None in memory.values():
            offered = self._offered if is_first else self._ask_again()
            self._offered = offered or self._offered
            said = {o.name: (o.total_bytes, o.free_bytes) for o in self._offered or ()}
            memory |= {i: said.get(there[i].offer) for i, told in memory.items() if told is None}
        return [
            self._device(index, there[index], *known)
            for index, known in memory.items()
            if known is not None and known != _NOTHING
        ]

    def _allowed(self, found: list[Seat]) -> list[Seat]:
        use_integrated = self._igpu
        if use_integrated is None:
            use_integrated = all(seat.kind is Kind.INTEGRATED for seat in found)
        return [seat for seat in found if use_integrated or seat.kind is Kind.DISCRETE]

    def _told(self, seat: Seat, gpu: Gpu | None) -> tuple[int, int] | None:
        """Total and free bytes by the driver, which costs nothing; None where it keeps silent."""
        if gpu is not None and gpu.total_bytes:
            return gpu.total_bytes, gpu.free_bytes
        if seat.kind is Kind.DISCRETE:
            return pci.memory(seat.bus_id, self._root)
        if gpu is not None:
            cpu = self._cpu()
            return cpu.total_bytes, cpu.available_bytes
        return None  # AMD's driver counts but what was set aside when the machine started

    def _device(self, index: int, seat: Seat, total: int, free: int) -> Device:
        if seat.kind is Kind.INTEGRATED:
            cpu = self._cpu()
            total, free = min(total, cpu.total_bytes), min(free, cpu.available_bytes)
        return Device(
            vendor=seat.vendor,
            index=index,
            name=seat.name,
            uuid=seat.uuid,
            total_bytes=total,
            free_bytes=free,
            id=seat.id,
            kind=seat.kind,
        )


def devices() -> list[Device]:
    """NVIDIA's alone, whether or not llama.cpp can use them."""
    return Devices()()
