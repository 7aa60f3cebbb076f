"""The metrics of requests and models, parsed by Prometheus' own parser."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from specd import core, errors
from specd.metrics import Device, LoadedModel, Metrics, Process, RequestRecord, State
from specd.metrics.families import FAMILIES, GROUPS, PROCESS, Kind
from specd.metrics.state import MAX_NAMES, BoundedLabels

STATS = core.SpeculationStats(
    drafter="tiny:latest",
    pair_source="user",
    draft_n=8,
    draft_n_accepted=6,
    lookup_n=3,
    lookup_n_accepted=2,
    rounds=4,
    n_steps=10,
    state=core.SpeculationState.ACTIVE,
    accepted_per_depth=(4, 2),
    drafted_per_depth=(4, 4),
)
DONE = core.Done(
    reason=core.StopReason.LENGTH,
    usage=core.Usage(
        n_prompt=50, n_cached=20, prompt_ns=2 * 10**9, n_generated=16, generate_ns=4 * 10**9
    ),
    speculation=STATS,
)
RESIDENT = LoadedModel(
    model="m:latest",
    drafter="tiny:latest",
    n_users=3,
    n_slots=2,
    n_ctx=4096,
    memory=(("target", "CUDA0", 70), ("target", "CPU", 5), ("drafter", "CUDA0", 9)),
    gain=1.5,
    threshold=0.25,
    plain_tokens_per_s=30.0,
)
STATE = State(
    ready=False,
    n_stuck=1,
    loaded=(RESIDENT,),
    waiting=("m:latest", "n:latest", "n:latest"),
    processes=(Process(model="m:latest", rss_bytes=1000, n_fds=7, cpu_s=2.5),),
    devices=(Device(name="RTX", id="GPU-1", free_bytes=5, total_bytes=24),),
)


@dataclass
class Counted:
    """Metrics with a clock that a test sets by hand."""

    now: float = 100.0
    names: BoundedLabels = field(default_factory=BoundedLabels)

    def __post_init__(self) -> None:
        self.metrics = Metrics(clock=lambda: self.now, names=self.names)

    def begin(self, **fields: str) -> RequestRecord:
        known = {
            "request_id": "req_1",
            "method": "POST",
            "dialect": "ollama",
            "route": "/api/chat",
            "path": "",
            "client": "::1",
        }
        return self.metrics.begin(**known | fields)

    def answer(self, model: str = "m:latest", done: core.Done | None = DONE) -> RequestRecord:
        """Return an answer of 11 s: load 5 s, queue 1 s, prompt 2 s, then 3 more tokens in 3 s."""
        record = self.begin()
        record.begin_answer(model)
        record.add_wait(6.0, 5.0)
        self.now += 6.0
        record.slot_assigned(core.Started(n_prompt=50, n_cached=20))
        for n_tokens, gap_s in ((1, 2.0), (2, 1.0), (1, 2.0)):
            self.now += gap_s
            record.add_tokens(n_tokens)
        record.done, record.status = done, 200
        return record

    def text(self, state: State | None = None, accept: str = "") -> tuple[str, str]:
        body, content_type = self.metrics.scrape(state or State(), accept)()
        return body.decode(), content_type

    def samples(self, state: State | None = None) -> dict[str, float]:
        """Return the samples by name{label="value",...}, with sorted labels."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.text(state)[0]):
            for sample in family.samples:
                labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found


@pytest.fixture
def collector() -> Counted:
    return Counted()


def test_an_answer_is_counted_once_at_its_end(collector: Counted) -> None:
    collector.metrics.end(collector.answer())
    found = collector.samples()
    of = '{model_name="m:latest"}'
    expected = {
        "prompt_tokens_total": 50,
        "generation_tokens_total": 16,
        "prefix_cache_queries_total": 50,
        "prefix_cache_hits_total": 20,
        "time_to_first_token_seconds_sum": 8.0,
        "request_queue_time_seconds_sum": 1.0,
        "request_prefill_time_seconds_sum": 2.0,
        "request_decode_time_seconds_sum": 4.0,
        "request_inference_time_seconds_sum": 6.0,
        "e2e_request_latency_seconds_sum": 11.0,
        "inter_token_latency_seconds_sum": 3.0,
        "inter_token_latency_seconds_count": 2,
        "request_time_per_output_token_seconds_sum": 1.0,
        "request_prompt_tokens_sum": 50,
        "request_generation_tokens_sum": 16,
    }
    assert {name: found[f"specd:{name}{of}"] for name in expected} == expected
    assert found['specd:request_success_total{finished_reason="length",model_name="m:latest"}'] == 1
    assert found['specd:http_requests_total{dialect="ollama",route="/api/chat",status="200"}'] == 1


def test_speculation_is_counted_by_pair(collector: Counted) -> None:
    for _ in range(2):
        collector.metrics.end(collector.answer())
    plain = dataclasses.replace(
        DONE, speculation=core.SpeculationStats(n_steps=5, reason="disabled_by_user")
    )
    collector.metrics.end(collector.answer(done=plain))
    found = collector.samples()
    pair = 'drafter="tiny:latest",model_name="m:latest"'
    expected = {
        f"spec_decode_num_drafts_total{{{pair}}}": 8,
        f"spec_decode_num_draft_tokens_total{{{pair}}}": 16,
        f"spec_decode_num_accepted_tokens_total{{{pair}}}": 12,
        f"spec_decode_num_lookup_tokens_total{{{pair}}}": 6,
        f"spec_decode_num_accepted_lookup_tokens_total{{{pair}}}": 4,
        f'spec_decode_num_accepted_tokens_per_pos_total{{{pair},position="1"}}': 4,
        f'spec_decode_num_draft_tokens_per_pos_total{{{pair},position="1"}}': 8,
        f'decode_steps_total{{{pair},speculation="on"}}': 8,
        f'decode_steps_total{{{pair},speculation="off"}}': 12,
        f'speculation_requests_total{{{pair},reason="",state="active"}}': 2,
        'speculation_requests_total{drafter="",model_name="m:latest",reason="disabled_by_user"'
        ',state="off"}': 1,
        'decode_steps_total{drafter="",model_name="m:latest",speculation="off"}': 5,
    }
    assert {name: found.get(f"specd:{name}") for name in expected} == expected
    assert 'specd:spec_decode_num_drafts_total{drafter="",model_name="m:latest"}' not in found


def test_an_answer_counts_up_to_the_client_s_disconnect(collector: Counted) -> None:
    record = collector.answer(done=None)
    record.left = True
    collector.metrics.end(record)
    found = collector.samples()
    assert found['specd:generation_tokens_total{model_name="m:latest"}'] == 4
    assert found['specd:request_success_total{finished_reason="abort",model_name="m:latest"}'] == 1
    assert found['specd:prompt_tokens_total{model_name="m:latest"}'] == 50
    assert found['specd:prefix_cache_queries_total{model_name="m:latest"}'] == 50
    assert found['specd:prefix_cache_hits_total{model_name="m:latest"}'] == 20
    assert 'specd:request_prompt_tokens_count{model_name="m:latest"}' not in found


def test_a_request_that_fails_before_a_slot_has_waited_in_the_queue(collector: Counted) -> None:
    record = collector.begin()
    record.begin_answer("m:latest")
    record.add_wait(0.5, 0.25)
    record.error, record.status = "ShuttingDown", 503
    collector.now += 11.0
    collector.metrics.end(record)
    found = collector.samples()
    assert found['specd:request_queue_time_seconds_sum{model_name="m:latest"}'] == 10.75
    assert 'specd:prompt_tokens_total{model_name="m:latest"}' not in found


def test_a_client_that_leaves_during_prefill_does_not_count_as_queued(collector: Counted) -> None:
    record = collector.begin()
    record.begin_answer("m:latest")
    record.add_wait(3.0, 1.0)
    collector.now += 4.0
    record.slot_assigned(core.Started(n_prompt=50))
    collector.now += 20.0
    record.left = True
    collector.metrics.end(record)
    found = collector.samples()
    assert found['specd:request_queue_time_seconds_sum{model_name="m:latest"}'] == 3.0
    assert found['specd:prompt_tokens_total{model_name="m:latest"}'] == 50


def test_an_answer_that_broke_is_an_error_and_no_success(collector: Counted) -> None:
    record = collector.answer(done=None)
    record.error = "EngineCrashed"
    collector.metrics.end(record)
    found = collector.samples()
    assert found['specd:request_errors_total{dialect="ollama",kind="EngineCrashed"}'] == 1
    assert not any(name.startswith("specd:request_success") for name in found)


def test_tokens_of_an_answer_under_way_are_counted_and_never_twice(collector: Counted) -> None:
    record = collector.answer()
    name = 'specd:generation_tokens_total{model_name="m:latest"}'
    found = collector.samples()
    assert (found[name], found["specd:http_requests_in_flight"]) == (4, 1)
    assert collector.samples()[name] == 4
    record.add_tokens(3)
    assert collector.samples()[name] == 7
    collector.metrics.end(record)
    found = collector.samples()
    assert (found[name], found["specd:http_requests_in_flight"]) == (16, 0)


def test_embedded_texts_are_counted(collector: Counted) -> None:
    record = collector.begin(route="/api/embed")
    record.model, record.status = "e:latest", 200
    entries = tuple(core.Embedding(vector=(1.0,), n_tokens=n) for n in (3, 4))
    record.add_embeddings(core.Embeddings(entries=entries))
    collector.metrics.end(record)
    found = collector.samples()
    assert found['specd:embedded_texts_total{model_name="e:latest"}'] == 2
    assert found['specd:prompt_tokens_total{model_name="e:latest"}'] == 7


def test_loads_and_unloads_are_counted(collector: Counted) -> None:
    metrics = collector.metrics
    metrics.loaded("m:latest", 3.0)
    metrics.load_failed("m:latest", errors.OutOfMemory("no"))
    metrics.left("m:latest", "make_room")
    metrics.engine_crashed("m:latest")
    metrics.refused()
    metrics.pulled(10)
    metrics.pulled(5)
    metrics.pushed(2)
    found = collector.samples()
    assert found['specd:model_loads_total{model_name="m:latest",result="ok"}'] == 1
    assert found['specd:model_loads_total{model_name="m:latest",result="OutOfMemory"}'] == 1
    assert found['specd:model_load_seconds_sum{model_name="m:latest"}'] == 3.0
    assert found['specd:model_evictions_total{model_name="m:latest",reason="make_room"}'] == 1
    assert found['specd:engine_crashes_total{model_name="m:latest"}'] == 1
    assert found["specd:queue_refusals_total"] == 1
    assert (found["specd:pulled_bytes_total"], found["specd:pushed_bytes_total"]) == (15, 2)


def test_the_current_state_is_read_at_the_scrape(collector: Counted) -> None:
    found = collector.samples(STATE)
    expected = {
        "ready": 0,
        "engines_stuck": 1,
        'num_requests_running{model_name="m:latest"}': 2,
        'num_requests_waiting{model_name="m:latest"}': 2,
        'num_requests_waiting{model_name="n:latest"}': 2,
        'model_resident{drafter="tiny:latest",model_name="m:latest"}': 1,
        'model_memory_bytes{device="CUDA0",model_name="m:latest",part="target"}': 70,
        'model_memory_bytes{device="CPU",model_name="m:latest",part="target"}': 5,
        'model_memory_bytes{device="CUDA0",model_name="m:latest",part="drafter"}': 9,
        'model_slots{model_name="m:latest"}': 2,
        'model_context_tokens{model_name="m:latest"}': 4096,
        'speculation_gain_ratio{drafter="tiny:latest",model_name="m:latest"}': 1.5,
        'acceptance_threshold{drafter="tiny:latest",model_name="m:latest"}': 0.25,
        'plain_tokens_per_second{model_name="m:latest"}': 30.0,
        'engine_resident_memory_bytes{model_name="m:latest"}': 1000,
        'engine_open_fds{model_name="m:latest"}': 7,
        'engine_cpu_seconds_total{model_name="m:latest"}': 2.5,
        'device_memory_free_bytes{device="RTX",id="GPU-1"}': 5,
        'device_memory_bytes{device="RTX",id="GPU-1"}': 24,
    }
    assert {name: found.get(f"specd:{name}") for name in expected} == expected
    # Unloaded models are no longer shown.
    assert not any("model_resident" in name for name in collector.samples())


def test_names_are_bounded_however_many_models_are_made() -> None:
    collector = Counted(names=BoundedLabels(2))
    for model in ("a", "b", "c", "d", "a"):
        collector.metrics.end(collector.answer(model))
        collector.metrics.loaded(model, 1.0)
    state = State(
        loaded=tuple(dataclasses.replace(RESIDENT, model=model) for model in "abcd"),
        waiting=tuple("abcd"),
    )
    found = collector.samples(state)
    models = {name.partition('model_name="')[2].partition('"')[0] for name in found} - {""}
    assert models == {"a", "b", "other"}
    assert found['specd:num_requests_running{model_name="other"}'] == 4
    assert found['specd:num_requests_waiting{model_name="other"}'] == 4
    assert found['specd:model_loads_total{model_name="other",result="ok"}'] == 2
    assert not any("gain" in name and "other" in name for name in found)


def test_a_pair_beyond_the_bound_keeps_its_model() -> None:
    names = BoundedLabels(2)
    assert [names.pair("a", d) for d in ("x", None, "z", "x")] == [
        ("a", "x"),
        ("a", ""),
        ("a", "other"),
        ("a", "x"),
    ]
    assert MAX_NAMES >= 12


# --------------------------------------------------------------------------- formats


def everything() -> Counted:
    """Return metrics in which every family has a sample."""
    collector = Counted()
    test_loads_and_unloads_are_counted(collector)
    test_embedded_texts_are_counted(collector)
    failed = collector.begin()
    failed.error, failed.status = "Internal", 500
    collector.metrics.end(failed)
    collector.metrics.end(collector.answer())
    return collector


def kinds(families: list[Metric]) -> dict[str, str]:
    return {family.name: family.type for family in families if family.name.startswith("specd:")}


@pytest.mark.parametrize(
    "accept,parse,content_type",
    [
        ("", text_string_to_metric_families, "text/plain"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3",
            openmetrics.text_string_to_metric_families,
            "application/openmetrics-text",
        ),
    ],
)
def test_all_declared_families_are_shown_and_no_others(
    accept: str, parse: Callable[[str], list[Metric]], content_type: str
) -> None:
    text, said = everything().text(STATE, accept)
    assert said.startswith(content_type)
    families = list(parse(text))
    assert kinds(families) == {family.full_name: family.kind.value for family in FAMILIES}
    declared = {family.full_name: family for family in FAMILIES}
    for shown in families:
        for sample in shown.samples:
            if (family := declared.get(shown.name)) is not None:
                assert set(sample.labels) - {"le"} == set(family.labels)
                assert sample.name in family.series
    theirs = {sample.name for shown in families for sample in shown.samples}
    assert {name for name in theirs if not name.startswith("specd:")} == set(PROCESS)


def test_families_are_declared_once_and_follow_prometheus_conventions() -> None:
    names = [name for family in FAMILIES for name in family.series]
    assert len(set(names)) == len(names)
    for family in itertools.chain(*GROUPS.values()):
        assert family.help.endswith(".")
        assert not family.name.endswith("_total")
        assert (family.kind is Kind.HISTOGRAM) == bool(family.buckets)
        assert list(family.buckets) == sorted(set(family.buckets))
