"""Estimate the cost of a draft step relative to a pass of the target, from the bytes both read.

A token takes the time to read the weights, plus a floor that does not depend on the model's size.
Both differ by device.

- On a CPU the floor is the synchronisation of the threads at each layer: some tenths of a
  millisecond, in which 8 MB are read.
- On a GPU the floor is the launch of some hundred kernels per pass.  Below three billion parameters
  launches take most of a pass.  A drafter's pass has as many, so it costs about as much as the
  target's.
"""

from __future__ import annotations

from typing import Final, Protocol

#: The CPU's floor, as the bytes that are read in that time.  The demo pair reads 3.2
#: and 5.4 MB, and on two cores a step of its drafter takes 0.85 of a pass of its target: 9 MB.
CPU_FLOOR_BYTES: Final = 8_000_000
#: The least active parameters of a target for which a search pays on a GPU.
GPU_LEAST_PARAMETERS: Final = 3_000_000_000
#: With four rows of a target's pass costing 1.83 of one (as measured on a CPU) and four of five
#: guesses kept, three guesses at a quarter of the price each gain 14 %, at a third 4 %, and at a
#: half they lose 11 %.  A closer pair needs a rule.
MAX_STEP_COST: Final = 0.25


class ModelSize(Protocol):
    """The size of a model, such as `store.gguf_metadata.GgufMetadata`.

    read_bytes: bytes of weights that are read for a token.
    n_active_parameters: parameters that are used for a token.
    n_parameters: all parameters; far more in a mixture of experts.
    """

    @property
    def read_bytes(self) -> int: ...
    @property
    def n_active_parameters(self) -> int: ...
    @property
    def n_parameters(self) -> int: ...


def step_cost(target: ModelSize, drafter: ModelSize, *, on_gpu: bool) -> float:
    """Return the estimated time of a draft step ÷ that of a pass of the target.

    on_gpu: whether both run on a GPU.  Returns 1 for a target that is too fast for any drafter.
    """
    if is_too_fast_to_draft(target, on_gpu=on_gpu):
        return 1.0
    floor_bytes = 0 if on_gpu else CPU_FLOOR_BYTES
    return (floor_bytes + drafter.read_bytes) / max(floor_bytes + target.read_bytes, 1)


def is_too_fast_to_draft(target: ModelSize, *, on_gpu: bool) -> bool:
    """Return whether even the smallest drafter costs too much relative to this target.

    A mixture with few active parameters is too fast on a CPU as well: each drafted token uses other
    experts, so that checking several tokens costs about as much as generating them.
    """
    if on_gpu or is_mixture(target):
        return target.n_active_parameters < GPU_LEAST_PARAMETERS
    return MAX_STEP_COST * (CPU_FLOOR_BYTES + target.read_bytes) < CPU_FLOOR_BYTES


def is_mixture(model: ModelSize) -> bool:
    """Return whether the model is a mixture of experts.

    The parameters of vision and audio parts also count as inactive, so the bound is generous.
    """
    return model.n_parameters >= 2 * model.n_active_parameters
