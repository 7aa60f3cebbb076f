"""Test the schedule: which prompts run in which mode and group."""

from __future__ import annotations

import pytest

from specd import core
from specd.bench.mode import AUTO, PLAIN, Mode
from specd.bench.schedule import MIXED, BenchPlan, RunSet, make_run_sets
from specd.bench.workload import HOSTILE, Form, Prompt, load_workload
from specd.errors import InvalidRequest

MODES = (PLAIN, Mode.fixed(3), AUTO)


def render(form: Form, prompt: Prompt) -> str:
    return f"{form}: {prompt.text}{prompt.begins}"


def run_sets(
    *names: str, n_prompts: int = 2, n_repeats: int = 1, streams: tuple[int, ...] = (1,)
) -> list[RunSet]:
    bench_plan = BenchPlan(
        workloads=[load_workload(name) for name in names],
        modes=MODES,
        temperatures=(0.0, 0.8),
        n_tokens=40,
        n_prompts=n_prompts,
        drafters=(core.DrafterKind.MODEL,),
        n_repeats=n_repeats,
        streams=streams,
    )
    return list(make_run_sets(bench_plan, render))


def test_workloads_take_turns_and_every_prompt_is_rendered() -> None:
    (run_set,) = run_sets("json", "chat")
    assert [(group.workload, group.number) for group in run_set.groups] == [
        ("json", 0),
        ("chat", 0),
        ("json", 1),
        ("chat", 1),
    ]
    first = load_workload("json").prompts[0]
    assert run_set.groups[0].items[0].text == f"chat: {first.text}{first.begins}"
    assert len(run_set) == 2 * 4 * 3 == len(list(run_set.runs()))


def test_repeats_take_other_prompts() -> None:
    (run_set,) = run_sets("json", n_repeats=3)
    assert [(group.number, group.repeat) for group in run_set.groups] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
    ]
    assert len({group.items[0].text for group in run_set.groups}) == 6


def test_a_prompt_keeps_its_seed_in_every_configuration() -> None:
    seeds = [
        run_set.groups[-1].items[-1].seed for run_set in (*run_sets("qa"), *run_sets("json", "qa"))
    ]
    assert seeds[0] == seeds[1]
    (run_set,) = run_sets("json", "qa", "chat", n_prompts=3)
    assert len({item.seed for group in run_set.groups for item in group.items}) == 9


def test_each_number_of_streams_has_a_run_set_with_mixed_workloads() -> None:
    single, double = run_sets("json", "chat", n_prompts=4, streams=(1, 2))
    assert (single.streams, double.streams) == (1, 2)
    assert {group.workload for group in double.groups} == {MIXED}
    assert [group.number for group in double.groups] == [0, 1, 2, 3]
    assert all(len({item.seed for item in group.items}) == 2 for group in double.groups)


def test_groups_of_one_workload_keep_its_name() -> None:
    (run_set,) = run_sets("json", n_prompts=5, streams=(2,))
    assert [group.workload for group in run_set.groups] == ["json", "json"]  # the fifth is left out


def test_no_run_set_lets_a_prompt_find_itself_in_the_cache() -> None:
    with pytest.raises(InvalidRequest, match="it takes 8 prompts to ask 4 at once"):
        run_sets("json", "chat", n_prompts=3, streams=(4,))


def test_the_hostile_run_set_comes_last_with_plain_and_auto() -> None:
    usual, hostile = run_sets("json", HOSTILE, "chat", n_prompts=2)
    assert {group.workload for group in usual.groups} == {"json", "chat"}
    assert (usual.hostile, hostile.hostile) == (False, True)
    assert hostile.modes == [PLAIN, AUTO]
    (alone,) = run_sets(HOSTILE, n_prompts=1)
    assert (alone.hostile, len(alone.groups)) == (True, 6)
    (repeated,) = run_sets(HOSTILE, n_prompts=1, n_repeats=6)
    assert len(repeated.groups) == 12, "there are 12 groups at most"


def test_warming_up_uses_every_mode_at_every_temperature_and_none_of_the_prompts() -> None:
    (run_set,) = run_sets("json", "chat", n_prompts=4, streams=(2,))
    warm_ups = list(run_set.warm_ups())
    assert {(mode, temperature) for _, mode, temperature in warm_ups} == {
        (mode, temperature) for mode in MODES for temperature in (0.0, 0.8)
    }
    counted = {item.text for group in run_set.groups for item in group.items}
    texts = {item.text for group, _, _ in warm_ups for item in group.items}
    assert len(texts) >= 3
    assert not counted & texts
    assert all(len(group.items) == 2 for group, _, _ in warm_ups)


def test_the_estimate_is_the_price_of_all_passes_and_of_reading_all_prompts() -> None:
    memory = core.ModelMemory(device="CPU", total_bytes=1, vram_bytes=0)
    facts = core.EngineFacts(
        n_ctx=1, n_ctx_train=1, n_vocab=1, target=memory, plain_tokens_per_s=10.0
    )
    single, double = run_sets("json", "chat", n_prompts=4, streams=(1, 2))
    n_passes = len(single) * 40 + 6 * 16
    assert single.seconds(facts) == pytest.approx(n_passes * 0.1)
    costs = core.PassCosts(target_s=((1, 0.1), (4, 0.2), (8, 0.3)))
    wide = core.EngineFacts(
        n_ctx=1, n_ctx_train=1, n_vocab=1, target=memory, plain_tokens_per_s=10.0, costs=costs
    )
    n_letters = sum(len(item.text) for group in double.groups for item in group.items)
    n_passes = len(double) * 40 + 6 * 16
    assert double.seconds(wide) == pytest.approx(n_passes * 0.2 + 6 * n_letters / 3 * 0.3 / 8)
