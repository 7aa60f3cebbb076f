"""Run `Devices` in a separate process, which loads the NVML that its environment names."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from specd import core
from specd.placement import Device, Devices

ROOT = Path(__file__).parents[2]


class Asking(AbstractContextManager["Asking"]):
    """A process that answers questions to `Devices`.

    offered: the devices that `Devices` gets.  said: the log of the last question.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        offered: Sequence[core.BackendDevice] | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.placement.devices_subprocess",
                msgspec.json.encode(offered),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": str(ROOT), **variables},
        )
        self.said: list[str] = []

    def devices(self) -> list[Device]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("?\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        self.said = answer["said"]
        return [msgspec.convert(device, Device) for device in answer["devices"]]

    def ids(self) -> list[str]:
        return [device.id for device in self.devices()]

    def __exit__(self, *_: object) -> None:
        self._child.communicate()
        assert self._child.returncode == 0


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def _main() -> None:
    offered: Any = msgspec.json.decode(sys.argv[1], type=list[core.BackendDevice] | None)
    devices, said = Devices(offered), _Said()
    logging.getLogger().addHandler(said)
    logging.getLogger().setLevel(logging.INFO)
    for _ in sys.stdin:
        said.lines.clear()
        found = [asdict(device) for device in devices()]
        sys.stdout.write(json.dumps({"devices": found, "said": said.lines}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
