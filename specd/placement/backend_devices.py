"""Which GPUs llama.cpp can use here, each by the name that an engine is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specd.core import BackendDevice
from specd.placement import cuda, pci
from specd.placement.nvidia import Gpu

#: The backend whose devices CUDA_VISIBLE_DEVICES names by UUID.
_CUDA = "CUDA"
#: The backend whose devices are on other machines.
_REMOTE = "RPC"
_VENDORS = {_CUDA: "nvidia", "ROCm": "amd", "MTL": "apple", "SYCL": "intel"}


class DeviceKind(StrEnum):
    DISCRETE = "discrete"
    INTEGRATED = "integrated"  # its memory is the main memory


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableDevice:
    """A GPU, without the memory that is free just now; fields as in `Device`.

    offer: llama.cpp's name of it, "" where only NVML was asked.
    """

    id: str
    vendor: str
    name: str
    kind: DeviceKind
    uuid: str = ""
    offer: str = ""
    bus_id: str = ""


def usable_devices(
    backend_devices: Sequence[BackendDevice] | None,
    gpus: Sequence[Gpu] | None,
    environ: Mapping[str, str],
    root: Path = Path("/"),
) -> list[UsableDevice]:
    """In the order in which llama.cpp numbers them.

    offered: what it says itself; None goes by NVML and CUDA's rules alone.  gpus None: no NVML.
    """
    shown = cuda.visible_gpus(gpus or [], environ)
    if backend_devices is None:
        return [_of_gpu(gpu) for gpu in shown]
    by_name = _matched(backend_devices, shown, gpus or [])
    local = [offer for offer in _distinct(backend_devices) if offer.backend != _REMOTE]
    found = [_of_offer(offer, by_name.get(offer.name), root) for offer in local]
    # One that NVML does not know beside others that it knows had been lost before we came.
    lost = (
        {usable_device.id for usable_device in found if usable_device.id.startswith(_CUDA)}
        if by_name
        else set()
    )
    return [usable_device for usable_device in found if usable_device.id not in lost]


def _of_gpu(gpu: Gpu) -> UsableDevice:
    kind = DeviceKind.DISCRETE if gpu.total_bytes else DeviceKind.INTEGRATED
    return UsableDevice(id=gpu.uuid, vendor="nvidia", name=gpu.name, kind=kind, uuid=gpu.uuid)


def _of_offer(offer: BackendDevice, gpu: Gpu | None, root: Path) -> UsableDevice:
    """gpu: the same by NVML, which Vulkan offers as well, but by its own name."""
    vendor = "nvidia" if gpu else _VENDORS.get(offer.backend) or pci.vendor(offer.bus_id, root)
    return UsableDevice(
        id=gpu.uuid if gpu and offer.backend == _CUDA else offer.name,
        vendor=vendor,
        name=gpu.name if gpu else offer.description,
        kind=DeviceKind.INTEGRATED if offer.integrated else DeviceKind.DISCRETE,
        uuid=gpu.uuid if gpu else "",
        offer=offer.name,
        bus_id=offer.bus_id,
    )


def _distinct(backend_devices: Sequence[BackendDevice]) -> Iterator[BackendDevice]:
    """A GPU that several backends offer counts once, as the first calls it: so does llama.cpp."""
    seen: set[str] = set()
    for offer in backend_devices:
        if offer.bus_id not in seen:
            yield offer
        seen |= {offer.bus_id} if offer.bus_id else set()


def _matched(
    backend_devices: Sequence[BackendDevice], shown: Sequence[Gpu], gpus: Sequence[Gpu]
) -> dict[str, Gpu]:
    """llama.cpp's names → NVML's GPUs, by their place on the bus."""
    by_bus: dict[str, Gpu] = {}
    for gpu in (*shown, *gpus):  # of a split GPU's instances, the one that CUDA shows
        by_bus.setdefault(gpu.bus_id, gpu)
    cuda_offers = [offer for offer in backend_devices if offer.backend == _CUDA]
    if any(not offer.bus_id for offer in cuda_offers):
        return {offer.name: gpu for offer, gpu in zip(cuda_offers, shown, strict=False)}
    return {offer.name: by_bus[offer.bus_id] for offer in backend_devices if offer.bus_id in by_bus}
