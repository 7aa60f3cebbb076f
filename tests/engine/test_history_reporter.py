"""When statistics are reported to the daemon."""

from __future__ import annotations

import pytest

from specd.core import BandHistory, PairHistory
from specd.engine.speculative.pair_stats import (
    REPORT_INTERVAL_S,
    HistoryReporter,
    history_for_device,
)
from specd.ipc.messages import PairHistoryUpdate


class ReporterHarness:
    """A reporter whose history is a counter, with its own clock."""

    def __init__(self) -> None:
        self.n_requests = 0
        self.now = 0.0
        self.said: list[PairHistoryUpdate] = []
        self.history_reporter = HistoryReporter(
            self.history, "CPU", self.said.append, lambda: self.now
        )

    def history(self) -> PairHistory:
        return PairHistory(bands=(BandHistory(drafter="m", band=0, n_requests=self.n_requests),))

    @property
    def reported_counts(self) -> list[int]:
        assert {learned.history.device for learned in self.said} <= {"CPU"}
        return [learned.history.bands[0].n_requests for learned in self.said]


def test_an_idle_engine_reports_changes_at_once() -> None:
    pupil = ReporterHarness()
    pupil.history_reporter.report_changes(is_busy=False)
    assert pupil.reported_counts == []
    for n in (1, 2):
        pupil.n_requests = n
        pupil.history_reporter.report_changes(is_busy=False)
        pupil.history_reporter.report_changes(is_busy=False)
    assert pupil.reported_counts == [1, 2]


def test_a_busy_engine_reports_at_intervals() -> None:
    pupil = ReporterHarness()
    for n in range(1, 25):
        pupil.n_requests = n
        pupil.now += REPORT_INTERVAL_S / 8
        pupil.history_reporter.report_changes(is_busy=True)
    assert pupil.reported_counts == [8, 16, 24]


@pytest.mark.parametrize("device,believed", [("CPU", True), ("CUDA0", False), ("", False)])
def test_a_history_of_another_device_is_ignored(device: str, believed: bool) -> None:
    history = PairHistory(device="CPU")
    assert history_for_device(history, device) == (history if believed else None)
    assert history_for_device(None, device) is None
