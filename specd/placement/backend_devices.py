"""Find the GPUs that llama.cpp can use, each with the name that selects it in an engine."""

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
    """A GPU that engines may use, without its memory; fields as in `Device`.

    offer: llama.cpp's name for it, "" if only NVML lists it.
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
    """Return the usable GPUs in the order in which llama.cpp numbers them.

    backend_devices: llama.cpp's own list; None means that only NVML and CUDA's rules are known.
    gpus: NVML's list; None means that there is no NVML.
    """
    shown = cuda.visible_gpus(gpus or [], environ)
    if backend_devices is None:
        return [_of_gpu(gpu) for gpu in shown]
    by_name = _matched(backend_devices, shown, gpus or [])
    local = [offer for offer in _distinct(backend_devices) if offer.backend != _REMOTE]
    found = [_of_offer(offer, by_name.get(offer.name), root) for offer in local]
    # If NVML knows some of the CUDA devices, those that it does not know have failed.
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
    """Return the device for llama.cpp's entry `offer`.

    gpu: NVML's entry for the same GPU.  Vulkan also lists NVIDIA's GPUs, under its own names.
    """
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
    """Yield each GPU once, under the first backend that lists it, as llama.cpp does."""
    seen: set[str] = set()
    for offer in backend_devices:
        if offer.bus_id not in seen:
            yield offer
        seen |= {offer.bus_id} if offer.bus_id else set()


def _matched(
    backend_devices: Sequence[BackendDevice], shown: Sequence[Gpu], gpus: Sequence[Gpu]
) -> dict[str, Gpu]:
    """Map llama.cpp's device names to NVML's GPUs by PCI address."""
    by_bus: dict[str, Gpu] = {}
    for gpu in (*shown, *gpus):  # `shown` first: CUDA shows one instance of a split GPU
        by_bus.setdefault(gpu.bus_id, gpu)
    cuda_offers = [offer for offer in backend_devices if offer.backend == _CUDA]
    if any(not offer.bus_id for offer in cuda_offers):
        return {offer.name: gpu for offer, gpu in zip(cuda_offers, shown, strict=False)}
    return {offer.name: by_bus[offer.bus_id] for offer in backend_devices if offer.bus_id in by_bus}
