"""The devices for a model's layers, as llama.cpp's model parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import llama_cpp

from specd.core import NVIDIA_UUID, EngineSpec
from specd.engine.llama.devices import device_address


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlacement:
    """The placement of a model on devices.

    devices: llama.cpp's names; (): main memory only; None: all devices that llama.cpp finds.
    n_gpu_layers: layers on GPUs; −1: all.
    shares: share of the layers on each device; (): llama.cpp's choice.
    main_gpu: index of the only GPU to use if `devices` is None; None: no choice.
    """

    devices: tuple[str, ...] | None = None
    n_gpu_layers: int = -1
    shares: tuple[float, ...] = ()
    main_gpu: int | None = None

    @classmethod
    def of_target(cls, spec: EngineSpec) -> Self:
        if spec.devices is None:
            return cls(n_gpu_layers=spec.n_gpu_layers, main_gpu=spec.main_gpu)
        names = tuple(_named_by_llama_cpp(spec.devices))
        if spec.n_gpu_layers == 0 or not names:
            return cls(devices=(), n_gpu_layers=0)
        # Devices without a share are for the drafter: the target needs no scratch there.
        shares = spec.tensor_split or (1.0,) * len(names)
        used = [at for at, share in enumerate(shares) if share > 0]
        return cls(
            devices=tuple(names[at] for at in used),
            n_gpu_layers=spec.n_gpu_layers,
            shares=tuple(spec.tensor_split[at] for at in used) if spec.tensor_split else (),
        )

    @classmethod
    def of_drafter(cls, spec: EngineSpec) -> Self:
        """Return the placement of the drafter: that of the target, unless the spec has another."""
        if spec.draft_on_cpu:
            return cls(devices=(), n_gpu_layers=0)
        if spec.draft_device is None or not spec.devices:
            return cls.of_target(spec)
        return cls(devices=(tuple(_named_by_llama_cpp(spec.devices))[spec.draft_device],))

    @property
    def is_on_gpu(self) -> bool:
        return self.n_gpu_layers != 0 and self.devices != ()

    def first_device(self) -> int | None:
        """Return the address (`ggml_backend_dev_t`) of the first device; None if none is named."""
        return device_address(self.devices[0]) if self.devices else None

    def apply_to(self, params: llama_cpp.llama_model_params) -> Sequence[object]:
        """Set the parameters; keep the returned objects alive as long as the parameters.

        Raises LoadFailed if llama.cpp does not have a device.
        """
        params.n_gpu_layers = self.n_gpu_layers
        if self.devices is None:
            if self.main_gpu is not None:
                params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE
                params.main_gpu = self.main_gpu
            return ()
        addresses = [*map(device_address, self.devices), None]
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        params.devices = ctypes.addressof(array)
        if len(self.devices) < 2:
            params.split_mode, params.main_gpu = llama_cpp.LLAMA_SPLIT_MODE_NONE, 0
            return (array,)
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_LAYER
        if not self.shares:
            return (array,)
        # llama.cpp always reads llama_max_devices() values.
        shares = (ctypes.c_float * max(llama_cpp.llama_max_devices(), len(addresses)))(*self.shares)
        params.tensor_split = shares
        return array, shares


#: llama.cpp's own choice.
DEFAULT_PLACEMENT = DevicePlacement()


def _named_by_llama_cpp(devices: Sequence[str]) -> Iterator[str]:
    n_nvidia = 0
    for device in devices:
        if device.startswith(NVIDIA_UUID):
            yield f"CUDA{n_nvidia}"
            n_nvidia += 1
        else:
            yield device
