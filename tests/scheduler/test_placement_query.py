"""Loads without memory: which models are unloaded, and what a load gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specd import core, errors
from specd.scheduler import Scheduler
from specd.scheduler.effects import Effect, Grant, Place, Refuse, Stop
from specd.scheduler.runner_ref import as_local
from tests.scheduler.factories import (
    LARGE,
    fits,
    full,
    load,
    requested,
    scheduler,
    start_of,
    started,
    waiter,
)

STARVED = errors.OutOfMemory("no memory")
NOTHING, DRAFTER, ANYTHING = core.GiveUp


def careful(max_loaded: int = 3) -> Scheduler:
    """Return a scheduler that queries placement; its automatic context has 262144 tokens."""
    return scheduler(max_loaded, kind=Scheduler, machine=LARGE)


def loading(s: Scheduler, effects: list[Effect]) -> int:
    """Return the id of the runner that starts after a placement that fits."""
    question = requested(effects)
    return started(s.placed(question, fits(question)))


@pytest.mark.contract("sched.memory")
def test_every_load_queries_placement_and_the_first_may_drop_the_drafter() -> None:
    s = careful()
    first = requested(s.request(waiter(1, "a")))
    assert first.request == core.PlacementRequest(
        spec=core.EngineSpec(weights="a", n_ctx=262_144, n_threads=2), min_ctx=4096, name="a"
    )
    # The next query names the spec as it was loaded, without what it gave up.
    runner_id = started(s.placed(first, fits(first, n_gpu_layers=7)))
    s.loaded(runner_id, 0.0)
    s.release(1, 0.0)
    second = requested(s.request(waiter(2, "b", n_ctx=512)))
    assert (second.request.spec.n_ctx, second.request.min_ctx) == (512, 512)
    assert [(spec.weights, spec.n_gpu_layers) for spec in second.request.residents] == [("a", 7)]
    assert second.request.give_up is NOTHING
    started(s.placed(second, fits(second)))


@pytest.mark.contract("sched.memory")
def test_the_first_model_is_loaded_even_if_it_does_not_fit() -> None:
    s = careful()
    question = requested(s.request(waiter(1, "a")))
    started(s.placed(question, full(question)))


@pytest.mark.contract("sched.memory", "sched.eviction")
def test_without_memory_idle_models_go_first_then_the_drafter_then_busy_models() -> None:
    s = careful()
    busy = load(s, waiter(1, "a"))
    long = load(s, waiter(2, "b", keep_alive_s=60.0))
    short = load(s, waiter(3, "c", keep_alive_s=30.0))
    s.release(2, 0.0)
    s.release(3, 0.0)
    s2 = s.request(waiter(4, "d"))
    assert s2 == [Stop(short)]  # three models are the limit
    question = requested(s.ended(short))
    assert question.request.give_up is NOTHING
    assert s.placed(question, full(question)) == [Stop(long)]
    # Memory may be free now, so placement is queried again; no other model is idle.
    question = requested(s.ended(long))
    assert question.request.give_up is DRAFTER
    assert s.placed(question, full(question)) == []
    assert s.request(waiter(5, "a")) == []  # else the first waiter might wait forever
    assert s.release(1, 0.0) == [Stop(busy)]
    question = requested(s.ended(busy))
    assert question.request.give_up is ANYTHING
    started(s.placed(question, fits(question)))


@pytest.mark.contract("sched.memory")
def test_a_model_beside_busy_ones_loads_without_its_drafter_rather_than_wait() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    question = requested(s.request(waiter(2, "b", drafter="d")))
    assert question.request.give_up is DRAFTER
    start = start_of(s.placed(question, fits(question, drafter=None)))
    assert s.loaded(start.runner_id, 0.0) == [Grant(2, start.runner_id)]
    # The model has no drafter until its next load.
    assert s.request(waiter(3, "b", drafter="d")) == [Grant(3, start.runner_id)]


@pytest.mark.contract("sched.memory")
def test_a_running_unload_is_awaited_before_a_load_gives_anything_up() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    leaving = load(s, waiter(2, "b", keep_alive_s=0.0))
    assert s.release(2, 0.0) == [Stop(leaving)]
    question = requested(s.request(waiter(3, "c")))
    assert question.request.give_up is NOTHING
    assert s.placed(question, full(question)) == []
    assert requested(s.ended(leaving)).request.give_up is DRAFTER


@pytest.mark.contract("sched.memory")
def test_models_that_alternate_between_busy_and_idle_do_not_block_the_queue() -> None:
    s = careful()
    a, b = load(s, waiter(1, "a")), load(s, waiter(2, "b"))
    s.release(2, 0.0)
    question = requested(s.request(waiter(3, "c")))
    assert question.request.give_up is NOTHING
    # During the query, b becomes busy and a idle: no second query starts.
    assert s.request(waiter(4, "b")) == [Grant(4, b)]
    assert s.release(1, 0.0) == []
    assert s.request(waiter(5, "a")) == [Grant(5, a)]
    # No model is idle now, so more may be given up; meanwhile a model accepts no new requests.
    more = requested(s.placed(question, full(question)))
    assert more.request.give_up is DRAFTER
    assert s.request(waiter(6, "a")) == []
    assert s.release(5, 0.0) == [Stop(a)]


@pytest.mark.contract("sched.memory")
def test_at_the_limit_of_models_no_placement_is_queried() -> None:
    s = careful(max_loaded=1)
    runner_id = load(s, waiter(1, "a"))
    s.release(1, 0.0)
    assert s.request(waiter(2, "b")) == [Stop(runner_id)]


@pytest.mark.contract("sched.memory")
def test_a_drafter_is_kept_if_a_busy_model_has_become_idle() -> None:
    s = careful()
    a, b = load(s, waiter(1, "a")), load(s, waiter(2, "b", keep_alive_s=600.0))
    question = requested(s.request(waiter(3, "c", drafter="d")))
    assert question.request.give_up is DRAFTER
    s.release(1, 0.0)
    again = requested(s.placed(question, fits(question, drafter=None)))
    assert again.request.give_up is NOTHING
    # It is busy again, which causes no further query: the pair fits now or not at all.
    assert s.request(waiter(4, "a")) == [Grant(4, a)]
    s.release(2, 0.0)
    assert s.placed(again, full(again)) == [Stop(b)]
    last = requested(s.ended(b))
    assert last.request.give_up is DRAFTER
    assert as_local(start_of(s.placed(last, fits(last))).spec).drafter == "d"


@pytest.mark.contract("sched.memory")
def test_the_drafter_is_dropped_if_no_model_is_idle_in_the_end() -> None:
    s = careful()
    a = load(s, waiter(1, "a"))
    question = requested(s.request(waiter(2, "c", drafter="d")))
    s.release(1, 0.0)
    again = requested(s.placed(question, fits(question, drafter=None)))
    assert s.request(waiter(3, "a")) == [Grant(3, a)]
    assert as_local(start_of(s.placed(again, full(again))).spec).drafter is None


@pytest.mark.contract("sched.memory")
def test_a_placement_with_the_drafter_loads_even_if_a_model_has_become_idle() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    question = requested(s.request(waiter(2, "c", drafter="d")))
    s.release(1, 0.0)
    assert as_local(start_of(s.placed(question, fits(question))).spec).drafter == "d"


def test_no_drafter_is_dropped_for_a_context_longer_than_requested() -> None:
    s = careful()
    runner_id = load(s, waiter(1, "a", n_ctx=1000, drafter="d"))
    s.release(1, 0.0)
    s.request(waiter(2, "a", n_ctx=1200, drafter="d"))
    grown_spec = requested(s.ended(runner_id))
    assert grown_spec.request.spec.n_ctx == 2000
    plain = requested(s.placed(grown_spec, fits(grown_spec, drafter=None)))
    assert plain.request.spec.n_ctx == 1200
    assert as_local(start_of(s.placed(plain, fits(plain))).spec).drafter == "d"


def test_a_context_shorter_than_a_waiter_needs_is_never_loaded() -> None:
    s = careful()
    question = requested(s.request(waiter(1, "a", n_ctx=4096)))
    start = start_of(s.placed(question, fits(question, n_ctx=2048)))
    assert as_local(start.spec).n_ctx == 4096
    assert s.loaded(start.runner_id, 0.0) == [Grant(1, start.runner_id)]


def test_a_late_placement_is_ignored() -> None:
    s = careful()
    load(s, waiter(1, "a"))
    late = requested(s.request(waiter(2, "b")))
    s.release(2, 0.0)
    question = requested(s.request(waiter(3, "b")))
    assert s.placed(late, fits(late)) == []
    started(s.placed(question, fits(question)))
    assert s.placed(question, fits(question)) == []


@pytest.mark.contract("sched.identity", "sched.memory")
def test_a_query_names_the_engines_that_hold_the_same_drafter() -> None:
    s = careful()
    load(s, waiter(1, "a", drafter="d"))
    question = requested(s.request(waiter(2, "b", drafter="d")))
    assert [spec.drafter for spec in question.request.residents] == ["d"]
    s.loaded(started(s.placed(question, fits(question))), 0.0)
    # Two tags over the same weights are one engine, with one drafter in it.
    assert len(s.runners()) == 2
    [grant] = s.request(waiter(3, "a", drafter="d", drafter_name="by another name"))
    assert isinstance(grant, Grant)
    assert [as_local(runner.spec).drafter for runner in s.runners()] == ["d", "d"]


# ----------------------------------------------------------------------- refused memory


@pytest.mark.contract("sched.oom")
def test_a_load_without_memory_is_tried_four_times_in_all() -> None:
    s = careful()
    effects = s.request(waiter(1, "a"))
    for n_refusals in range(4):
        question = requested(effects)
        assert question.request.n_refusals == n_refusals
        assert question.request.n_refused_alone == n_refusals
        n_ctx = 262_144 >> n_refusals
        runner_id = started(s.placed(question, fits(question, n_ctx=n_ctx)))
        told = s.failed(runner_id, STARVED)
        effects = s.ended(runner_id)
    assert told == [Refuse(1, STARVED)]
    assert effects == []
    # No refusal is remembered.
    assert requested(s.request(waiter(2, "a"))).request.n_refusals == 0


@pytest.mark.contract("sched.oom", "sched.load-failure")
def test_a_load_fails_if_it_is_alone_and_can_give_up_nothing_more() -> None:
    s = careful()
    runner_id = loading(s, s.request(waiter(1, "a", n_ctx=65536)))
    s.request(waiter(2, "a"))  # would accept less
    s.request(waiter(3, "a", n_ctx=65536))
    s.request(waiter(4, "b"))
    assert s.failed(runner_id, STARVED) == []
    question = requested(s.ended(runner_id))
    *told, next_question = s.placed(question, fits(question))
    assert told == [Refuse(1, STARVED), Refuse(3, STARVED)]
    assert isinstance(next_question, Place)
    assert (next_question.waiter_id, next_question.request.n_refusals) == (2, 0)


@pytest.mark.contract("sched.oom", "sched.load-failure")
def test_a_placement_equal_to_the_failed_one_is_not_tried_again() -> None:
    s = careful()
    question = requested(s.request(waiter(1, "a", n_ctx=512, drafter="d")))
    without = {"drafter": None, "no_pair_reason": "drafter_no_vram"}
    first = started(s.placed(question, fits(question, **without, no_pair_detail="16.2 GiB")))
    s.failed(first, STARVED)
    question = requested(s.ended(first))
    assert s.placed(question, fits(question, **without, no_pair_detail="13.0 GiB")) == [
        Refuse(1, STARVED)
    ]


@pytest.mark.contract("sched.oom", "sched.load-failure")
def test_a_load_known_to_be_too_large_fails_with_the_memory_that_it_needs() -> None:
    s = careful()
    question = requested(s.request(waiter(1, "a", n_ctx=512)))
    tried = replace(fits(question), shortage="a needs about 40 GiB, and free are 20 GiB")
    first = started(s.placed(question, tried))
    s.failed(first, STARVED)
    question = requested(s.ended(first))
    [refused] = s.placed(question, tried)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, errors.OutOfMemory)
    assert str(refused.error) == f"a needs about 40 GiB, and free are 20 GiB: {STARVED}"


@pytest.mark.contract("sched.oom")
def test_a_later_request_for_a_load_that_failed_fails_at_once() -> None:
    s = careful()
    runner_id = loading(s, s.request(waiter(1, "a", n_ctx=262_144)))
    s.request(waiter(2, "a"))  # gets the same context, but would accept less
    s.failed(runner_id, STARVED)
    s.release(1, 0.0)
    question = requested(s.ended(runner_id))
    assert (question.waiter_id, question.request.n_refusals) == (2, 1)
    assert s.placed(question, fits(question)) == [Refuse(2, STARVED)]


@pytest.mark.contract("sched.oom")
def test_a_reduced_context_serves_requests_without_num_ctx() -> None:
    s = careful()
    first = loading(s, s.request(waiter(1, "a")))
    s.request(waiter(2, "a"))
    s.failed(first, STARVED)
    question = requested(s.ended(first))
    second = started(s.placed(question, fits(question, n_ctx=8192)))
    assert s.loaded(second, 0.0) == [Grant(1, second), Grant(2, second)]
    assert s.request(waiter(3, "a")) == [Grant(3, second)]


@pytest.mark.contract("sched.oom")
def test_a_grown_context_is_reduced_first() -> None:
    s = careful()
    runner_id = load(s, waiter(1, "a", n_ctx=1000))
    s.release(1, 0.0)
    s.request(waiter(2, "a", n_ctx=1200))
    grown_spec = loading(s, s.ended(runner_id))
    s.failed(grown_spec, STARVED)
    question = requested(s.ended(grown_spec))
    assert (question.request.spec.n_ctx, question.request.n_refusals) == (1200, 1)


@pytest.mark.contract("sched.oom", "sched.eviction")
def test_idle_models_are_unloaded_before_a_load_gives_anything_up() -> None:
    s = careful(max_loaded=4)
    one, two = load(s, waiter(1, "a")), load(s, waiter(2, "b"))
    load(s, waiter(3, "busy"))
    s.release(1, 0.0)
    s.release(2, 0.0)
    first = loading(s, s.request(waiter(4, "c")))
    assert s.failed(first, STARVED) == []
    assert s.ended(first) == [Stop(one), Stop(two)]
    assert s.ended(one) == []
    question = requested(s.ended(two))
    assert (question.request.give_up, question.request.n_refusals) == (DRAFTER, 1)
    assert question.request.n_refused_alone == 0
    # The same placement may succeed now, because the others are unloaded.
    started(s.placed(question, fits(question)))


@pytest.mark.contract("sched.oom")
def test_a_load_that_failed_beside_busy_models_waits_for_them() -> None:
    s = careful()
    busy = load(s, waiter(1, "a"))
    first = loading(s, s.request(waiter(2, "b", n_ctx=512)))
    s.failed(first, STARVED)
    question = requested(s.ended(first))
    assert s.placed(question, fits(question)) == []
    assert s.request(waiter(3, "a")) == []
    assert s.release(1, 0.0) == [Stop(busy)]
    question = requested(s.ended(busy))
    assert question.request.give_up is ANYTHING
    second = started(s.placed(question, fits(question)))
    s.failed(second, STARVED)
    question = requested(s.ended(second))
    told, _ = s.placed(question, fits(question))
    assert told == Refuse(2, STARVED)


@pytest.mark.contract("sched.oom")
def test_the_last_attempt_runs_without_other_models() -> None:
    s = careful()
    busy = load(s, waiter(1, "a"))
    effects = s.request(waiter(2, "b"))
    for n_ctx in (9000, 8000, 7000):
        question = requested(effects)
        runner_id = started(s.placed(question, fits(question, n_ctx=n_ctx)))
        s.failed(runner_id, STARVED)
        effects = s.ended(runner_id)
    assert effects == []
    assert s.release(1, 0.0) == [Stop(busy)]
    assert requested(s.ended(busy)).request.n_refusals == 3


@pytest.mark.contract("sched.oom")
def test_a_cancelled_request_ends_its_further_attempts() -> None:
    s = careful()
    other = load(s, waiter(1, "a"))
    first = loading(s, s.request(waiter(2, "b", n_ctx=512)))
    s.failed(first, STARVED)
    assert s.release(2, 0.0) == []
    assert s.ended(first) == []
    assert s.request(waiter(3, "a")) == [Grant(3, other)]
    assert requested(s.request(waiter(4, "b", n_ctx=512))).request.n_refusals == 0


@pytest.mark.contract("sched.oom")
def test_memory_that_runs_out_after_the_load_unloads_the_idle_models() -> None:
    s = careful()
    used, idle = load(s, waiter(1, "a")), load(s, waiter(2, "b"))
    s.release(2, 0.0)
    assert s.ran_out_of_memory(5.0) == [Stop(idle)]
    assert s.ran_out_of_memory(6.0) == []
    assert s.request(waiter(3, "a")) == [Grant(3, used)]


@pytest.mark.contract("sched.oom")
def test_a_successful_load_clears_the_recorded_failures() -> None:
    s = careful()
    effects = s.request(waiter(1, "a"))
    s.request(waiter(2, "a", n_batch=64))
    first = loading(s, effects)
    s.failed(first, STARVED)
    question = requested(s.ended(first))
    second = started(s.placed(question, fits(question, n_ctx=8192)))
    assert s.loaded(second, 0.0) == [Grant(1, second)]
    assert s.release(1, 0.0) == [Stop(second)]
    assert requested(s.ended(second)).request.n_refusals == 0


@pytest.mark.contract("sched.memory")
def test_an_engine_that_ended_during_its_placement_is_placed_again() -> None:
    s = careful()
    effects = s.request(waiter(1, "a"))
    first = loading(s, effects)
    # It ended without an error, so the placement is for an earlier state of the machine.
    assert s.ended(first) == effects
