"""Check which requests a loaded model serves, which reload it, and how its context grows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specd import core
from specd.placement import Defaults
from specd.scheduler import Scheduler
from specd.scheduler.effects import Effect, Grant, Start, Stop
from specd.scheduler.runner_ref import as_local
from tests.scheduler.factories import (
    LARGE,
    SMALL,
    Narrow,
    fits,
    load,
    requested,
    scheduler,
    start_of,
    started,
    waiter,
)


@pytest.mark.contract("sched.reload")
@pytest.mark.parametrize(
    "spec",
    [
        {"n_ctx": 8192},
        {"n_batch": 64},
        {"n_gpu_layers": 3},
        {"main_gpu": 1},
        {"n_threads": 1},
        {"use_mmap": False},
        {"flash_attention": False},
        {"kv_cache_type": "q8_0"},
        {"n_slots": 2},
        {"adapters": ("lora",)},
        {"projector": "mmproj"},
        {"embeds": True},
        {"drafter": "d", "pair_source": "manifest"},
    ],
)
def test_other_runner_options_reload_the_model(spec: dict[str, Any]) -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a"))
    assert s.request(waiter(2, "a", **spec)) == []
    assert s.release(1, 0.0) == [Stop(runner_id)]
    assert started(s.ended(runner_id)) != runner_id


@pytest.mark.contract("sched.reload")
@pytest.mark.parametrize(
    "spec",
    [
        {"n_ctx": 0},
        {"n_ctx": 4096},
        {"n_ctx": 512},
        {"n_gpu_layers": -1},
        {"main_gpu": None},
        {"n_threads": 2},
        {"drafter": None, "drafter_name": "", "pair_source": "", "no_pair_reason": "why"},
        {"drafter": "other", "drafter_name": "y", "pair_source": "user"},
        {"drafter": "d", "pair_source": "manifest"},
        {"max_draft": 3},
    ],
)
def test_an_automatic_or_shorter_context_or_a_draft_option_reloads_nothing(
    spec: dict[str, Any],
) -> None:
    s = scheduler()
    there: dict[str, Any] = {
        "drafter": "d",
        "drafter_name": "x",
        "pair_source": "registry",
        "main_gpu": 0,
    }
    runner_id = load(s, waiter(1, "a", **there))
    assert s.request(waiter(2, "a", **({"main_gpu": 0} | spec))) == [Grant(2, runner_id)]


@pytest.mark.contract("sched.reload")
def test_an_embedder_serves_shorter_contexts_and_reloads_for_longer_ones() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=512, embeds=True))
    for who, n_ctx in ((2, 100), (3, 512)):
        assert s.request(waiter(who, "a", n_ctx=n_ctx, embeds=True)) == [Grant(who, runner_id)]
    for who in range(1, 4):
        s.release(who, 0.0)
    assert reload(s, 4, 513, embeds=True) == 1024
    assert reload(s, 5, 0, embeds=True) == 4096


@pytest.mark.contract("sched.reload")
def test_automatic_options_accept_the_loaded_values() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=5000, n_gpu_layers=5, main_gpu=1))
    assert s.request(waiter(2, "a")) == [Grant(2, runner_id)]


@pytest.mark.contract("sched.reload")
def test_an_automatic_context_is_never_shorter_because_another_asked_for_less() -> None:
    s = scheduler()
    load(s, waiter(1, "a", n_ctx=4095))
    s.release(1, 0.0)
    # The automatic context of a fresh daemon, 4096, not twice the last context.
    assert reload(s, 2, 0) == 4096
    [runner] = s.runners()
    for who, n_ctx in ((3, 4095), (4, 0), (5, 4096)):
        assert s.request(waiter(who, "a", n_ctx=n_ctx)) == [Grant(who, runner.id)]


@pytest.mark.contract("sched.reload")
def test_a_short_context_fits_a_model_that_was_trained_for_no_more() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=512, n_ctx_train=512))
    assert s.request(waiter(2, "a", n_ctx_train=512)) == [Grant(2, runner_id)]


@pytest.mark.contract("sched.reload")
def test_automatic_requests_share_a_context_that_memory_reduced() -> None:
    s = scheduler(kind=Narrow, machine=LARGE)
    load(s, waiter(1, "a", n_ctx=5000))
    s.release(1, 0.0)
    assert reload(s, 2, 0) == 10_000
    # This request needs slightly more, which from then on serves both.
    assert reload(s, 3, 10_001) == 10_001
    [runner] = s.runners()
    for who, n_ctx in ((4, 0), (5, 10_001), (6, 0)):
        assert s.request(waiter(who, "a", n_ctx=n_ctx)) == [Grant(who, runner.id)]


@pytest.mark.contract("sched.reload")
def test_an_earlier_automatic_context_does_not_limit_the_next_load() -> None:
    s = scheduler(kind=Narrow, machine=LARGE)
    load(s, waiter(1, "a", keep_alive_s=0.0))
    [stopped] = s.release(1, 0.0)
    assert isinstance(stopped, Stop)
    assert s.ended(stopped.runner_id) == []
    load(s, waiter(2, "a", n_ctx=10_001))
    s.release(2, 0.0)
    assert reload(s, 3, 0) == 10_000


@pytest.mark.contract("sched.reload")
def test_a_load_with_a_short_context_is_not_for_an_automatic_request() -> None:
    s = scheduler()
    runner_id = started(s.request(waiter(1, "a", n_ctx=64)))
    assert s.request(waiter(2, "a")) == []
    assert s.release(1, 0.0) == [Stop(runner_id)]  # no request needs this load now
    assert as_local(start_of(s.ended(runner_id)).spec).n_ctx == 4096


@pytest.mark.contract("sched.reload")
def test_an_automatic_request_does_not_inherit_the_growth_of_a_cancelled_one() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=3000))
    s.release(1, 0.0)
    assert s.request(waiter(2, "a", n_ctx=3001)) == [Stop(runner_id)]
    assert s.request(waiter(3, "a")) == []
    s.release(2, 0.0)
    assert as_local(start_of(s.ended(runner_id)).spec).n_ctx == 4096


@pytest.mark.contract("sched.reload")
def test_a_drafter_that_lost_is_tried_again_at_the_next_load_and_forces_none() -> None:
    s = scheduler()
    own: dict[str, Any] = {"drafter": "d", "pair_source": "manifest"}
    runner_id = load(s, waiter(1, "a", no_pair_reason="does_not_pay"))
    assert s.request(waiter(2, "a", **own)) == [Grant(2, runner_id)]
    # With any other reason for no drafter, the runner is not shared.
    s = scheduler()
    load(s, waiter(1, "a", no_pair_reason="drafter_not_found"))
    assert s.request(waiter(2, "a", **own)) == []


@pytest.mark.contract("sched.reload", "sched.identity")
def test_tags_with_drafters_of_their_own_over_the_same_weights_do_not_share() -> None:
    s = scheduler()
    mine: dict[str, Any] = {"drafter": "mine", "pair_source": "manifest"}
    runner_id = load(s, waiter(1, "a", **mine))
    assert s.request(waiter(2, "a", **mine)) == [Grant(2, runner_id)]
    assert s.request(waiter(3, "a", drafter="theirs", pair_source="manifest")) == []
    # A request without a drafter could share the runner, but the first waiter needs its place.
    assert s.request(waiter(4, "a")) == []
    s.release(1, 0.0)
    assert s.release(2, 0.0) == [Stop(runner_id)]
    other = start_of(s.ended(runner_id))
    assert as_local(other.spec).drafter == "theirs"
    grants = s.loaded(other.runner_id, 0.0)
    assert grants == [Grant(3, other.runner_id), Grant(4, other.runner_id)]


@pytest.mark.contract("sched.reload")
def test_options_that_placement_changed_do_not_reload_the_model() -> None:
    s = scheduler(kind=Scheduler, machine=LARGE)
    mine: dict[str, Any] = {"drafter": "d", "pair_source": "manifest", "max_draft": 4}
    question = requested(s.request(waiter(1, "a", n_ctx=8192, **mine)))
    made = fits(
        question,
        drafter=None,
        no_pair_reason="drafter_no_vram",
        n_gpu_layers=17,
        devices=("GPU-0", "GPU-1"),
        tensor_split=(0.5, 0.5),
        draft_device=1,
        use_mmap=True,
    )
    start = start_of(s.placed(question, made))
    assert start.spec == made.spec
    s.loaded(start.runner_id, 0.0)
    [runner] = s.runners()
    assert (runner.requested, runner.spec) == (question.request.spec, made.spec)
    assert s.request(waiter(2, "a", n_ctx=8192, **mine)) == [Grant(2, runner.id)]
    assert s.request(waiter(3, "a", n_ctx=8192)) == [Grant(3, runner.id)]


@pytest.mark.contract("sched.reload")
def test_a_context_that_placement_reduced_serves_no_longer_request() -> None:
    s = scheduler(kind=Scheduler, machine=LARGE)
    question = requested(s.request(waiter(1, "a")))
    assert (question.request.spec.n_ctx, question.request.min_ctx) == (262_144, 4096)
    runner_id = started(s.placed(question, fits(question, n_ctx=10_000)))
    assert s.request(waiter(2, "a", n_ctx=10_000)) == []
    assert s.request(waiter(3, "a", n_ctx=10_001)) == []
    assert s.loaded(runner_id, 0.0) == [Grant(1, runner_id), Grant(2, runner_id)]


# ----------------------------------------------------------------------- growth


def reload(s: Scheduler, who: int, n_ctx: int, **more: Any) -> int:
    """Reload "a" for a request with `n_ctx`; return the new context in tokens."""
    [runner] = s.runners()
    assert s.request(waiter(who, "a", n_ctx=n_ctx, **more)) == [Stop(runner.id)]
    start = start_of(s.ended(runner.id))
    s.loaded(start.runner_id, 0.0)
    s.release(who, 0.0)
    return as_local(start.spec).n_ctx


@pytest.mark.contract("sched.reload")
def test_a_longer_context_doubles_up_to_the_trained_length() -> None:
    s = scheduler()
    load(s, waiter(1, "a", n_ctx=1000, n_ctx_train=4500))
    s.release(1, 0.0)
    assert reload(s, 2, 1001, n_ctx_train=4500) == 2000
    assert reload(s, 3, 4400, n_ctx_train=4500) == 4400
    assert reload(s, 4, 4401, n_ctx_train=4500) == 4500


@pytest.mark.contract("sched.reload")
def test_a_longer_context_is_placed_with_the_requested_one_as_its_minimum() -> None:
    s = scheduler(kind=Scheduler)
    runner_id = load(s, waiter(1, "a", n_ctx=1000))
    s.release(1, 0.0)
    s.request(waiter(2, "a", n_ctx=1200))
    request = requested(s.ended(runner_id)).request
    assert (request.spec.n_ctx, request.min_ctx) == (2000, 1200)
    assert request.give_up is core.GiveUp.NOTHING


@pytest.mark.contract("sched.reload")
def test_the_growth_of_a_context_is_given_up_first() -> None:
    s = scheduler(kind=Scheduler)
    other = load(s, waiter(1, "b"))
    s.release(1, 0.0)
    runner_id = load(s, waiter(2, "a", n_ctx=1000))
    s.release(2, 0.0)
    s.request(waiter(3, "a", n_ctx=1200))
    question = requested(s.ended(runner_id))
    exact = requested(s.placed(question, core.Placement(spec=question.request.spec, fits=False)))
    assert (exact.request.spec.n_ctx, exact.request.min_ctx) == (1200, 1200)
    assert s.placed(exact, core.Placement(spec=exact.request.spec, fits=False)) == [Stop(other)]
    assert requested(s.ended(other)).request.spec.n_ctx == 1200


@pytest.mark.contract("sched.reload")
def test_a_model_unloaded_for_another_reason_returns_with_the_requested_context() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=1000, keep_alive_s=0.0))
    assert s.request(waiter(2, "a", n_ctx=1200)) == []
    assert s.release(1, 0.0) == [Stop(runner_id)]  # its keep-alive has expired anyway
    start = start_of(s.ended(runner_id))
    assert as_local(start.spec).n_ctx == 1200
    s.loaded(start.runner_id, 0.0)
    s.release(2, 0.0)
    # A shorter context with another batch size: the old context was long enough, so none grows.
    assert reload(s, 3, 500, n_batch=64) == 500


@pytest.mark.contract("sched.reload")
def test_a_cancelled_request_for_a_longer_context_grows_nothing() -> None:
    s = scheduler()
    runner_id = load(s, waiter(1, "a", n_ctx=1000))
    s.release(1, 0.0)
    assert s.request(waiter(2, "a", n_ctx=1200)) == [Stop(runner_id)]
    s.release(2, 0.0)
    assert s.ended(runner_id) == []
    assert as_local(start_of(s.request(waiter(3, "a", n_ctx=1100))).spec).n_ctx == 1100


N_CTX_TRAIN = 2**17


@pytest.mark.contract("sched.reload")
@given(
    asked_for=st.lists(st.just(0) | st.integers(4, N_CTX_TRAIN), min_size=1),
    n_ctx_train=st.sampled_from([0, N_CTX_TRAIN]),
    machine=st.sampled_from([SMALL, LARGE]),
)
def test_any_sequence_of_contexts_needs_few_loads(
    asked_for: list[int], n_ctx_train: int, machine: Defaults
) -> None:
    s = scheduler(machine=machine)
    automatic = machine.fill(core.EngineSpec(weights="a", n_ctx=0), n_ctx_train).n_ctx
    least = [n_ctx or automatic for n_ctx in asked_for]
    n_loads, first = 0, 0

    def act(effects: list[Effect]) -> None:
        nonlocal n_loads, first
        for effect in effects:
            match effect:
                case Start(runner_id, spec):
                    n_loads, first = n_loads + 1, first or as_local(spec).n_ctx
                    act(s.loaded(runner_id, 0.0))
                case Stop(runner_id):
                    act(s.ended(runner_id))
                case Grant(waiter_id):
                    [runner] = s.runners()
                    assert as_local(runner.spec).n_ctx >= least[waiter_id]

    for waiter_id, n_ctx in enumerate(asked_for):
        who = waiter(waiter_id, "a", math.inf, n_ctx=n_ctx, n_ctx_train=n_ctx_train)
        act(s.request(who))
        assert s.waiting() == []
        act(s.release(waiter_id, 0.0))
    # Each load at least doubles the context, except the one that makes it automatic.
    n_doubled = math.ceil(math.log2(max(least) / first))
    assert n_loads <= 1 + n_doubled + (0 in asked_for)


@pytest.mark.contract("sched.reload")
@given(asked_for=st.lists(st.sampled_from([0, 64, 9_999, 10_000, 10_001, 20_000]), min_size=1))
@example([10_001, 0, 10_001] * 9)
@example([10_001, 20_000, 0] * 9)
def test_alternating_contexts_do_not_reload_the_model_each_time(asked_for: list[int]) -> None:
    """This holds even if memory is too short for the automatic context."""
    s = scheduler(kind=Narrow, machine=LARGE)
    n_loads = 0

    def act(effects: list[Effect]) -> None:
        nonlocal n_loads
        for effect in effects:
            match effect:
                case Start(runner_id, _):
                    n_loads += 1
                    act(s.loaded(runner_id, 0.0))
                case Stop(runner_id):
                    act(s.ended(runner_id))

    for waiter_id, n_ctx in enumerate(asked_for):
        act(s.request(waiter(waiter_id, "a", math.inf, n_ctx=n_ctx)))
        assert s.waiting() == []
        act(s.release(waiter_id, 0.0))
    # The first automatic load may get a shorter context than earlier explicit ones, which then
    # load once more.  After that, the longest automatic context is known.
    explicit = set(asked_for) - {0}
    assert n_loads <= len(set(asked_for)) + (len(explicit) if 0 in asked_for else 0)
