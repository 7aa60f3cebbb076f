"""A simulated text that drives the controller: no model, no clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

from specd.core import SpeculationMode
from specd.engine.speculative.controller import MODEL, Controller, Guess
from specd.engine.speculative.cost_model import CostModel

#: V(w)/V(1) of a 1 B model on two cores, as docs/speculation.md tells: steps of four rows.
CPU = {1: 1.0, 2: 1.6, 3: 1.76, 4: 1.83, 5: 2.82, 8: 2.85, 9: 3.9, 17: 7.0}
#: A machine where wide passes are almost free.
GPU = {1: 1.0, 17: 1.15}


@dataclass
class Text:
    """A simulated text: each drafted token is accepted with the chance its margin suggests."""

    rate: float
    draw: random.Random

    def margin(self) -> float:
        return self.draw.expovariate(0.4)

    def accepted(self, margin: float) -> bool:
        chance = self.rate + (1 - self.rate) * self.rate * (margin > 2)
        return self.draw.random() < chance


@dataclass
class Run:
    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    drafting_steps: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run(
    controller: Controller,
    truth: CostModel,
    text: Text,
    n_steps: int,
    *,
    n_max: int | None = None,
    mode: SpeculationMode = SpeculationMode.AUTO,
    request_id: int = 1,
) -> Run:
    """Drive one open request; `truth` gives the time of each step."""
    total = Run()
    for _ in range(n_steps):
        margins: list[float] = []
        limit = controller.plan(request_id, 0, 1)
        while len(margins) < limit:
            margins.append(text.margin())
            if not controller.extend(request_id, margins):
                break
        ((sent_by, n_sent),) = controller.choose([(request_id, margins)])
        n_right = 0
        while n_right < len(margins) and text.accepted(margins[n_right]):
            n_right += 1
        n_accepted = min(n_right, n_sent)
        # The token after the last one kept judges one guess more, be it unsent.
        n_known = n_accepted + 1
        guesses: list[Guess] = []
        if margins:
            controller.observe_draft(len(margins), 0, truth.draft_s(len(margins)))
            n_judged = min(n_known, len(margins))
            guesses = [(MODEL, margins, min(n_right, n_known), n_judged)]
            total.drafting_steps += 1
        controller.observe_step(request_id, sent_by, n_sent, n_accepted, guesses)
        seconds = truth.target_s(1 + n_sent)
        controller.observe_target(1 + n_sent, seconds)
        total.tokens += n_accepted + 1
        total.seconds += seconds + truth.draft_s(len(margins))
        total.drafted += len(margins)
    return total


def make(
    costs: dict[int, float], draft_step_s: float = 0.05, threshold: float | None = None
) -> Controller:
    return Controller(CostModel(costs, draft_step_s, draft_step_s / 10), threshold)
