"""Store the measured figures in training.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HeldOut:
    """Loss on files held out of the training."""

    tokens: int
    loss: float
    loss_by_position: list[float]


def update(path: Path, figures: dict[str, Any]) -> None:
    """Add these figures to the file."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | figures, indent=2) + "\n")
