"""The division of an engine's models among memories, and the bytes in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from specd.placement.estimate import Footprint

#: llama.cpp's GGML_SCHED_MAX_COPIES.
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The devices of target and drafter.  A place is an index into the machine's devices.

    layers: (place, number of the target's layers there); the output counts as a layer.
    drafter: the place of its device, None for main memory.  All other layers are in main memory.
    """

    layers: tuple[tuple[int, int], ...] = ()
    drafter: int | None = None

    @property
    def n_layers(self) -> int:
        return sum(n for _, n in self.layers)

    @property
    def devices(self) -> tuple[int, ...]:
        """The places in use, the target's first: a projector is put on the first device."""
        own = tuple(at for at, _ in self.layers)
        return own if self.drafter is None or self.drafter in own else (*own, self.drafter)

    def on_devices(self, target: Footprint, drafter: Footprint | None) -> Counter[int]:
        """Return the bytes on each device, by its place."""
        taken: Counter[int] = Counter()
        layers = layer_bytes(target, self.n_layers)
        scratch = device_scratch_bytes(target, self.n_layers, len(self.layers))
        for at, n in self.layers:
            taken[at] += sum(layers[:n]) + scratch
            layers = layers[n:]
        if self.layers:
            taken[self.layers[0][0]] += target.extra_bytes
        if drafter is not None and self.drafter is not None:
            taken[self.drafter] += drafter.on_device(-1)
        return taken

    def in_main_memory(
        self, target: Footprint, drafter: Footprint | None, mapped: tuple[bool, bool]
    ) -> int:
        """Return the bytes in main memory.

        mapped: whether another engine already maps the weights of the target, of the drafter.
        """
        taken = _in_main_memory(target, self.n_layers, mapped[0]) + self._copies_bytes(target)
        if drafter is not None:
            n_layers = 0 if self.drafter is None else len(drafter.blocks) + 1
            taken += _in_main_memory(drafter, n_layers, mapped[1])
        return taken

    def as_loaded(self, target: Footprint) -> Footprint:
        """Return the target's footprint with the extra copies that several devices need.

        Streamed blocks are left out: their bytes are an upper bound, and a correction learned from
        it would be too low for layouts without them.
        """
        copies = self._copies_bytes(target)
        return replace(
            target,
            device_scratch_bytes=target.device_scratch_bytes + copies,
            host_scratch_bytes=target.host_scratch_bytes + copies,
        )

    def _copies_bytes(self, target: Footprint) -> int:
        return _copies_bytes(target, self.n_layers, len(self.layers))

    def total_bytes(self, target: Footprint, drafter: Footprint | None = None) -> int:
        """Return the bytes of all memories together."""
        on_devices = self.on_devices(target, drafter).total()
        return on_devices + self.in_main_memory(target, drafter, (False, False))


def layer_bytes(model: Footprint, n_layers: int) -> Sequence[int]:
    """Return the bytes of each of the last `n_layers` layers; the output is the last of them."""
    blocks = [block.weights_bytes + block.cache_bytes for block in model.blocks]
    return [*blocks, model.output_bytes][len(blocks) + 1 - n_layers :]


def device_scratch_bytes(model: Footprint, n_layers: int, n_devices: int) -> int:
    """Return the scratch on each of `n_devices` devices that hold the last `n_layers` layers.

    For long prompts llama.cpp streams the blocks in main memory through every device, one at a
    time, so the largest block counts.
    """
    kept = model.blocks[: len(model.blocks) + 1 - n_layers]
    streamed = max((block.weights_bytes for block in kept), default=0)
    return model.device_scratch_bytes + streamed + _copies_bytes(model, n_layers, n_devices)


def _copies_bytes(model: Footprint, n_layers: int, n_devices: int) -> int:
    """Return the bytes of further input copies, on every device and in main memory.

    If several devices hold a whole model, llama.cpp pipelines `_AT_ONCE` passes and copies the
    inputs of each.  If there is no memory for the copies, llama.cpp does without them.
    """
    works_at_once = n_devices > 1 and n_layers > len(model.blocks)
    return (_AT_ONCE - 1) * model.transfer_bytes if works_at_once else 0


def _in_main_memory(model: Footprint, n_layers: int, is_mapped: bool) -> int:
    taken = model.in_main_memory(n_layers)
    if not is_mapped:
        return taken
    kept = model.blocks[: len(model.blocks) + 1 - n_layers]
    output = model.output_bytes - model.tied_bytes if n_layers == 0 else 0
    return taken - sum(block.weights_bytes for block in kept) - model.input_bytes - output
