"""The list of GPUs that this build of llama.cpp can use.

`python -m specd.engine devices` prints lines of JSON, each with the whole list; the last line is
the most complete.  A GPU must be opened to measure its memory.  If the GPU is full, that may end
the process, so the first line has the names without memory.
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
