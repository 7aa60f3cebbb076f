"""Read NVIDIA GPUs and their memory through NVML."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pynvml

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A whole GPU, or one instance of a GPU that is split (MIG).

    index: number of the GPU, in the order of the bus.  bus_id: as in `core.BackendDevice`.
    total_bytes: 0 if it has no memory of its own.
    parent: the UUID of the split GPU, "" for a whole one.
    speed: cores × clock, for comparison; 0 if unknown.
    """

    index: int
    bus_id: str
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    parent: str = ""
    speed: int = 0


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver.

    version: such as "570.124.06".  cuda: the newest CUDA version that it runs, such as "12.8".
    """

    version: str
    cuda: str


class Nvml:
    """The NVML library.  Reads anew at every call and logs once if a GPU stops answering.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._known: dict[str, Gpu] = {}
        self._lost: set[str] = set()
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def gpus(self) -> list[Gpu] | None:
        """Return all GPUs that answer, in the order of the bus; None without library or driver."""
        silent: dict[int, str] = {}
        failure = ""
        gpus = None
        with self._lock:
            try:
                with _session():
                    gpus = list(_all_gpus(silent))
            except pynvml.NVMLError as error:
                failure = str(error)
                if error.value != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                    self._warn_once(f"NVML cannot list NVIDIA's GPUs: {error}")
            self._compare(gpus or [], silent, failure)
        return gpus

    def driver(self) -> Driver | None:
        """Return the driver's versions; None if NVIDIA's driver does not answer."""
        with self._lock:
            try:
                with _session():
                    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
                    version = _text(pynvml.nvmlSystemGetDriverVersion())
            except pynvml.NVMLError:
                return None
        return Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}")

    def _compare(self, gpus: list[Gpu], silent: dict[int, str], failure: str) -> None:
        """Log the GPUs that are gone or back since the last call."""
        present = {gpu.uuid: gpu for gpu in gpus}
        for uuid in sorted(self._lost & present.keys()):
            log.info("%s (%s) answers again", present[uuid].name, uuid)
        self._known |= present
        gone = self._known.keys() - present.keys()
        for uuid in sorted(gone - self._lost):
            gpu = self._known[uuid]
            why = silent.get(gpu.index) or failure or "the driver does not list it"
            log.warning("%s (%s) does not answer, so it is not used: %s", gpu.name, uuid, why)
        self._lost = gone
        for index in silent.keys() - {self._known[uuid].index for uuid in gone}:
            self._warn_once(
                f"NVIDIA GPU {index} does not answer, so it is not used: {silent[index]}"
            )

    def _warn_once(self, words: str) -> None:
        if words not in self._warned:
            log.warning("%s", words)
            self._warned.add(words)


@contextmanager
def _session() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _all_gpus(silent: dict[int, str]) -> Iterator[Gpu]:
    """Yield all GPUs that answer; put the index of each other one and the reason in `silent`."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found = _gpus_at(index)
        except pynvml.NVMLError as error:
            silent[index] = str(error)
        else:
            yield from found


def _gpus_at(index: int) -> list[Gpu]:
    """Return the GPU, or the instances of a split GPU: none if none has been created."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    whole = _gpu(index, handle, handle)
    if not _is_split(handle):
        return [whole]
    return [_gpu(index, handle, instance, parent=whole.uuid) for instance in _instances(handle)]


def _gpu(index: int, card: object, handle: object, parent: str = "") -> Gpu:
    """Return the GPU.  handle: of the whole card, or of one of its instances."""
    place = pynvml.nvmlDeviceGetPciInfo(card)
    total, free = _memory(handle)
    return Gpu(
        index=index,
        bus_id=f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.0",
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=total,
        free_bytes=free,
        parent=parent,
        speed=_speed(card),
    )


def _memory(handle: object) -> tuple[int, int]:
    """Return total and free bytes; (0, 0) for a GPU that uses main memory."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError_NotSupported:
        return 0, 0
    return int(memory.total), int(memory.free)


def _is_split(handle: object) -> bool:
    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return False
    return bool(mode == pynvml.NVML_DEVICE_MIG_ENABLE)


def _instances(handle: object) -> Iterator[object]:
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue  # no instance has been created at this index


def _speed(handle: object) -> int:
    """Return cores × clock, 0 if unknown."""
    try:
        clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
        return int(pynvml.nvmlDeviceGetNumGpuCores(handle)) * int(clock)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older bindings give bytes
