"""A trace of a controller over a simulated answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from specd.core import SpeculationMode
from specd.engine.speculative.controller import LOOKUP, MODEL
from specd.engine.speculative.draft_proposal import SiblingLimits
from specd.engine.speculative.trace import Call, Header
from specd.engine.trace import TraceWriter

HEADER = Header("0.0", {1: 1.0, 4: 1.4, 17: 3.0}, draft_step_s=0.1, catch_up_s=0.01, threshold=0.4)


def run(
    write: Callable[[Call], None],
    n_steps: int = 40,
    *,
    n_right: int = 0,
    header: Header = HEADER,
    n_leaves: int = 0,
) -> None:
    """Run one request of n_steps, in which the first n_right tokens of each draft are right.

    n_leaves: most siblings of a draft, all of which are right.
    """
    controller = header.controller(write)
    controller.open(7, None, SpeculationMode.AUTO, 0.8, [MODEL, LOOKUP])
    for _ in range(n_steps):
        n_max, margins = controller.plan(7, 0, 1), list[float]()
        while len(margins) < n_max:
            margins.append(4.0)
            if not controller.extend(7, margins):
                break
        places = SiblingLimits(list(range(len(margins))), n_leaves, 16)
        [(sent_by, n)] = controller.choose([(7, margins)], [places])
        right = min(n_right, len(margins))
        if right < len(margins):
            controller.observe_sibling(7, is_right=True)
        guesses = [(MODEL, margins, right, min(right + 1, len(margins)))] if margins else []
        controller.observe_step(7, sent_by, n, min(n, n_right), guesses)
        controller.observe_target(n + 1, 1.0)
    controller.state(7)
    controller.close(7)


def write_trace(folder: Path, n_steps: int = 40, *, n_right: int = 0) -> Path:
    with closing(TraceWriter(folder, Path("model.gguf"), HEADER)) as writer:
        run(writer.write, n_steps, n_right=n_right)
    return writer.path
