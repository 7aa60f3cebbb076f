"""What a draft step costs beside a pass of the target, estimated from what both read.

A token takes as long as the weights take to be read, and a floor besides: what a pass costs however
small its model is.  Both differ by device.

- A CPU computes a pass by calling functions.  The floor is the meeting of its threads at each
  layer, some tenths of a millisecond, in which 8 MB are read.
- A GPU is told to compute: each of some hundred kernels of a pass is launched, whatever the size of
  the model.  Below three billion parameters a pass is mostly that, and as many launches are in a
  pass of a drafter: it then costs about as much as one of the target.
"""

from __future__ import annotations

from typing import Final, Protocol

#: Bytes that a CPU reads in the time that a pass takes besides reading.  The demo pair reads 3.2
#: and 5.4 MB, and on two cores a step of its drafter takes 0.85 of a pass of its target: 9 MB.
CPU_FLOOR_BYTES: Final = 8_000_000
#: A target of which a token meets fewer parameters is not worth a search on a GPU.
GPU_LEAST_PARAMETERS: Final = 3_000_000_000
#: With four rows of a target's pass costing 1.83 of one (as measured on a CPU) and four of five
#: guesses kept, three guesses at a quarter of the price each gain 14 %, at a third 4 %, and at a
#: half they lose 11 %.  A closer pair needs a rule.
MAX_STEP_COST: Final = 0.25


class ModelSize(Protocol):
    """What a token of a model needs: `store.facts.GgufMetadata` says it.

    read_bytes: of weights.  n_active_parameters: those that it meets.
    n_parameters: all of them; far more where experts take turns.
    """

    @property
    def read_bytes(self) -> int: ...
    @property
    def n_active_parameters(self) -> int: ...
    @property
    def n_parameters(self) -> int: ...


def step_cost(target: ModelSize, drafter: ModelSize, *, on_gpu: bool) -> float:
    """Return the seconds of a draft step ÷ those of a pass of the target, estimated.

    on_gpu: whether a GPU computes them.  A target that is too quick for any drafter gives 1.
    """
    if is_too_fast_to_draft(target, on_gpu=on_gpu):
        return 1.0
    floor_bytes = 0 if on_gpu else CPU_FLOOR_BYTES
    return (floor_bytes + drafter.read_bytes) / max(floor_bytes + target.read_bytes, 1)


def is_too_fast_to_draft(target: ModelSize, *, on_gpu: bool) -> bool:
    """Return whether no drafter, however small, costs little enough beside this target.

    A mixture of few active parameters is too quick on a CPU as well: each drafted token wakes
    further experts, so that checking some costs about as much as writing them.
    """
    if on_gpu or is_mixture(target):
        return target.n_active_parameters < GPU_LEAST_PARAMETERS
    return MAX_STEP_COST * (CPU_FLOOR_BYTES + target.read_bytes) < CPU_FLOOR_BYTES


def is_mixture(model: ModelSize) -> bool:
    """What sees and hears is counted among all parameters, so a few more are no experts yet."""
    return model.n_parameters >= 2 * model.n_active_parameters
