"""What an engine process inherits: the daemon's environment, and which GPUs it may see."""

from __future__ import annotations

import os
from collections.abc import Sequence

from specd import core

#: libgomp's threads wait for each other some hundred times in a pass, and spin for milliseconds
#: before they sleep.  Where another process wants the cores as well, the spinner holds the one that
#: its partner needs: 1 B parameters on two busy cores gave 0.3 tokens/s, with this 14, and the same
#: 30 as before on idle ones.
THREAD_DEFAULTS = {"GOMP_SPINCOUNT": "1000"}
#: A backtrace means a forked gdb and seconds of delay.
FIXED = {"GGML_NO_BACKTRACE": "1"}

#: What an engine has no use for, and strangers' models none at all.
SECRETS = frozenset({"SPECD_API_KEYS", "OLLAMA_API_KEY"})

#: Hides all devices of AMD, whose lists end before the first that there is not, and of Vulkan.
_HIDE_OTHER_GPUS = {
    "HIP_VISIBLE_DEVICES": "-1",
    "ROCR_VISIBLE_DEVICES": "-1",
    "GGML_VK_VISIBLE_DEVICES": "",
}


def environment(devices: Sequence[str] | None = None) -> dict[str, str]:
    """devices: as in `core.EngineSpec`; None leaves to llama.cpp what the daemon may see."""
    own = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return THREAD_DEFAULTS | own | FIXED | visibility_variables(devices)


def visibility_variables(devices: Sequence[str] | None) -> dict[str, str]:
    """The variables that hide all GPUs but `devices`.

    An engine opens what it sees, and an open GPU has some hundred MiB less.
    """
    if devices is None or not all(device.startswith(core.NVIDIA_UUID) for device in devices):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} | _HIDE_OTHER_GPUS
