"""Says which GPUs this build of llama.cpp can use.

`python -m specd.engine devices`: each line on stdout is the whole list, as JSON, and the last one
is the best.  To measure a GPU's memory it must be opened, and where it is full the process may end
over that: by then the names have been said.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from specd.core import BackendDevice
from specd.engine.llama import devices
from specd.ipc.parent_death import die_with_parent


def main() -> int:
    die_with_parent()
    gpus = devices.gpus()
    _write_devices([devices.describe_device(gpu) for gpu in gpus])
    if gpus:
        _write_devices([devices.open_device(gpu) for gpu in gpus])
    return 0


def _write_devices(gpus_found: Sequence[BackendDevice]) -> None:
    sys.stdout.write(msgspec.json.encode(gpus_found).decode() + "\n")
    sys.stdout.flush()
