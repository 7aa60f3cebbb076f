"""The environment variables of an engine process, with the GPUs that it may see."""

from __future__ import annotations

import os
from collections.abc import Sequence

from specd import core

#: libgomp's threads wait for each other some hundred times in a pass and spin for milliseconds
#: before they sleep.  On busy cores a spinning thread occupies the core that its partner needs.
#: Measured with 1 B parameters on two cores: 0.3 tokens/s before and 14 with this on busy cores,
#: 30 in both cases on idle cores.
THREAD_DEFAULTS = {"GOMP_SPINCOUNT": "1000"}
#: A backtrace would start gdb and take seconds.
FIXED = {"GGML_NO_BACKTRACE": "1"}

#: Secrets that engines do not need: they run models from unknown sources.
SECRETS = frozenset({"SPECD_API_KEYS", "OLLAMA_API_KEY"})

#: Hides all devices of AMD and Vulkan.  AMD's lists end at the first unknown index, here -1.
_HIDE_OTHER_GPUS = {
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "",
}


def environment(devices: Sequence[str] | None = None) -> dict[str, str]:
    """Return the environment of an engine.

    devices: as in `core.EngineSpec`; None lets it see all GPUs that the daemon sees.
    """
    own = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return THREAD_DEFAULTS | own | FIXED | visibility_variables(devices)


def visibility_variables(devices: Sequence[str] | None) -> dict[str, str]:
    """Return the variables that hide all GPUs but `devices`.

    An engine opens each GPU that it sees, which takes some hundred MiB of it.
    """
    if devices is None or not all(device.startswith(core.NVIDIA_UUID) for device in devices):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} | _HIDE_OTHER_GPUS
