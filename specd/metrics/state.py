"""The daemon's state at a scrape, and its conversion to samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from specd.metrics import families
from specd.metrics.families import Family, Kind

#: Most models, and most pairs, used as labels: each is a time series in Prometheus.  A home has
#: about a dozen, but clients could create names without end.
MAX_NAMES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """An engine's process.  cpu_s: CPU seconds since its start."""

    model: str
    rss_bytes: int
    n_fds: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    id: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A loaded model.

    memory: tuples of part (target, drafter), device and bytes.
    n_users: requests in its engine; those beyond `n_slots` wait there.
    gain: None while unknown.  threshold: share of drafted tokens that must be accepted; None while
    unknown.  plain_tokens_per_s: 0 while unknown.
    """

    model: str
    drafter: str = ""
    n_users: int = 0
    n_slots: int = 1
    n_ctx: int = 0
    memory: tuple[tuple[str, str, int], ...] = ()
    gain: float | None = None
    threshold: float | None = None
    plain_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the daemon.

    waiting: the model's name, once for each request that waits for it.
    n_stuck: engines that cannot be killed.
    """

    ready: bool = True
    n_stuck: int = 0
    loaded: tuple[LoadedModel, ...] = ()
    waiting: tuple[str, ...] = ()
    processes: tuple[Process, ...] = ()
    devices: tuple[Device, ...] = ()


class BoundedLabels:
    """Label values for models and pairs: the first `max_names` by name, later ones as `other`.

    Use it in the event loop's thread only.
    """

    OTHER: Final = "other"

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._models: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()

    def model(self, name: str) -> str:
        if name not in self._models:
            if len(self._models) >= self._max_names:
                return self.OTHER
            self._models.add(name)
        return name

    def pair(self, model: str, drafter: str | None) -> tuple[str, str]:
        """Return the labels of model and drafter.  drafter: "" or None without one."""
        pair = self.model(model), drafter or ""
        if pair not in self._pairs:
            if len(self._pairs) >= self._max_names:
                return pair[0], self.OTHER
            self._pairs.add(pair)
        return pair


class SampleSet:
    """The samples of one scrape; values with the same labels, such as `other`, are added up."""

    def __init__(self) -> None:
        self._values: dict[Family, dict[tuple[str, ...], float]] = {}

    def add(self, family: Family, value: float, *labels: str) -> None:
        series = self._values.setdefault(family, {})
        series[labels] = series.get(labels, 0.0) + value

    def metrics(self) -> Iterator[Metric]:
        for family, series in self._values.items():
            kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
            metric = kind(family.full_name, family.help, labels=family.labels)
            for labels, value in series.items():
                metric.add_metric(labels, value)
            yield metric


def collect_samples(state: State, names: BoundedLabels) -> SampleSet:
    """Return the samples of a state."""
    samples = SampleSet()
    samples.add(families.READY, state.ready)
    samples.add(families.STUCK, state.n_stuck)
    for model in state.loaded:
        _add_model(samples, model, names)
    for waiting in state.waiting:
        samples.add(families.WAITING, 1, names.model(waiting))
    for process in state.processes:
        name = names.model(process.model)
        samples.add(families.ENGINE_RSS, process.rss_bytes, name)
        samples.add(families.ENGINE_FDS, process.n_fds, name)
        samples.add(families.ENGINE_CPU, process.cpu_s, name)
    for device in state.devices:
        samples.add(families.DEVICE_FREE, device.free_bytes, device.name, device.id)
        samples.add(families.DEVICE_TOTAL, device.total_bytes, device.name, device.id)
    return samples


def _add_model(samples: SampleSet, model: LoadedModel, names: BoundedLabels) -> None:
    name, drafter = pair = names.pair(model.model, model.drafter)
    samples.add(families.RESIDENT, 1, *pair)
    samples.add(families.RUNNING, min(model.n_users, model.n_slots), name)
    samples.add(families.WAITING, max(model.n_users - model.n_slots, 0), name)
    samples.add(families.SLOTS, model.n_slots, name)
    samples.add(families.CONTEXT, model.n_ctx, name)
    for part, device, n_bytes in model.memory:
        samples.add(families.RESIDENT_BYTES, n_bytes, name, part, device)
    if model.gain is not None and names.OTHER not in pair:
        samples.add(families.GAIN, model.gain, name, drafter)
    if model.threshold is not None and names.OTHER not in pair:
        samples.add(families.THRESHOLD, model.threshold, name, drafter)
    if model.plain_tokens_per_s and name != names.OTHER:
        samples.add(families.PLAIN_SPEED, model.plain_tokens_per_s, name)
