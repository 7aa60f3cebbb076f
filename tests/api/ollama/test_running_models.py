"""The objects of loaded models in `/api/ps`, and of a pair in `/api/show`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specd import core
from specd.api.ollama.running_models import resident_details
from specd.core import NoPair
from specd.scheduler import ModelStats, Resident
from specd.scheduler.runner_ref import as_local
from specd.store import ModelSummary
from tests.api.fakes import WALL_NS, FakeGeneration, FakeLibrary, client, model_ref

DEVICE = "CUDA0"
TARGET = core.ModelMemory(
    device=DEVICE,
    total_bytes=100,
    vram_bytes=80,
    by_device=((DEVICE, 80), ("CPU", 20)),
    weights_bytes=60,
    cache_bytes=30,
    scratch_bytes=10,
)
DRAFTER = core.ModelMemory(
    device=DEVICE,
    total_bytes=10,
    vram_bytes=8,
    by_device=((DEVICE, 8), ("CPU", 2)),
    weights_bytes=6,
    cache_bytes=3,
    scratch_bytes=1,
)
PAIRED: dict[str, Any] = {"drafter_name": "tiny:latest", "pair_source": "manifest"}


def resident(name: str, expires_at: float = math.inf, *, paired: bool = False) -> Resident:
    ref = model_ref(name)
    pair = core.Pair(target=ref, reason=NoPair.NOT_FOUND, detail="No drafter fits.")
    if paired:
        found = core.Drafter(name="tiny:latest", weights=ref.weights, source="manifest")
        pair = core.Pair(target=ref, drafter=found, rule="plain*")
    facts = core.EngineFacts(
        n_ctx=4096,
        n_ctx_train=8192,
        n_vocab=512,
        target=TARGET,
        drafter=DRAFTER if paired else None,
        plain_tokens_per_s=12.345,
        exact=core.Exactness(
            speculation=True, parallel=False, prompt_cache=False, enforced=("no_drafts",)
        ),
    )
    spec = core.EngineSpec(weights="x", n_slots=2, **PAIRED)
    return Resident(model=ref, pair=pair, spec=spec, facts=facts, expires_at=expires_at)


def answered(
    state: core.SpeculationState, reason: str = "", detail: str = "", gain: float | None = None
) -> ModelStats:
    stats = core.SpeculationStats(state=state, reason=reason, detail=detail)
    judged_ns, plain_ns = (0, 0.0) if gain is None else (100, 100 * gain)
    return ModelStats(
        n_requests=12,
        draft_n=9,
        draft_n_accepted=6,
        judged_ns=judged_ns,
        plain_ns=plain_ns,
        last=stats,
    )


async def ps(*loaded: Resident, doing: str = "") -> list[dict[str, Any]]:
    async with (
        client(loaded=loaded, drafter_fetch_status=lambda _: doing) as http,
        http.get("/api/ps") as reply,
    ):
        models: list[dict[str, Any]] = (await reply.json())["models"]
    return models


async def specd(loaded: Resident, doing: str = "") -> dict[str, Any]:
    [model] = await ps(loaded, doing=doing)
    found: dict[str, Any] = model["specd"]
    return found


def why(said: dict[str, Any]) -> tuple[str, str]:
    return said["reason"], said["detail"]


@pytest.mark.contract("ps.fields", "ps.order", "ps.vram")
async def test_ps_counts_the_drafter_or_gives_the_reason_for_none() -> None:
    forever, soon = await ps(
        resident("plain", WALL_NS / 1e9 + 60), resident("gone", math.inf, paired=True)
    )
    assert list(soon) == [
        *("name", "model", "size", "digest", "details", "expires_at", "size_vram"),
        *("context_length", "specd"),
    ]
    assert (soon["size"], soon["size_vram"], soon["context_length"]) == (100, 80, 4096)
    assert soon["details"]["parameter_size"] == "5M"
    target = {
        "device": "CUDA0",
        "size": 100,
        "size_vram": 80,
        "size_weights": 60,
        "size_cache": 30,
        "size_scratch": 10,
        "devices": {"CUDA0": 80, "CPU": 20},
    }
    assert soon["specd"] == {
        "target": target,
        "drafter": None,
        "pair_source": None,
        "state": None,
        "reason": "drafter_not_found",
        "detail": "No drafter fits.",
        "gain": None,
        "requests": 0,
        "draft_n": 0,
        "draft_n_accepted": 0,
        "acceptance_rate": 0.0,
        "threshold": None,
        "threshold_source": None,
        "device": "CUDA0",
        "slots": 2,
        "plain_tokens_per_s": 12.35,
        "exact": {
            "speculation": True,
            "parallel": False,
            "prompt_cache": False,
            "enforced": ["no_drafts"],
        },
    }
    assert (forever["size"], forever["size_vram"]) == (110, 88)
    assert forever["expires_at"].startswith("2318-")
    assert forever["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "",
        "quantization_level": "",
    }
    assert forever["specd"]["target"] == target
    assert forever["specd"]["drafter"] == {
        "name": "tiny:latest",
        "pair_source": "manifest",
        "rule": "plain*",
        "device": "CUDA0",
        "size": 10,
        "size_vram": 8,
        "size_weights": 6,
        "size_cache": 3,
        "size_scratch": 1,
        "devices": {"CUDA0": 8, "CPU": 2},
    }
    assert forever["specd"]["pair_source"] == "manifest"
    assert why(forever["specd"]) == ("", "")


class Unlisted(FakeLibrary):
    """A library that finds models by name but lists none, as with the demo model."""

    def list(self) -> Sequence[ModelSummary]:
        return ()


@pytest.mark.contract("ps.fields")
def test_ps_details_a_model_that_is_not_listed_like_any_other() -> None:
    plain = resident("plain")
    listed = resident_details(FakeLibrary(plain.model), [plain])
    assert listed["plain:latest"].parameter_size == "5M"
    assert resident_details(Unlisted(plain.model), [plain]) == listed


@pytest.mark.contract("ps.order")
async def test_ps_of_an_idle_daemon_is_an_empty_list() -> None:
    assert await ps() == []


# --------------------------------------------------------------------------- reasons for no drafter


@pytest.mark.parametrize("reason", NoPair)
async def test_every_reason_of_a_pair_is_shown(reason: NoPair) -> None:
    plain = resident("plain")
    pair = replace(plain.pair, reason=reason, detail=f"It is {reason}.")
    assert why(await specd(replace(plain, pair=pair))) == (reason.value, f"It is {reason}.")


@pytest.mark.parametrize("reason", NoPair)
@pytest.mark.parametrize("where", ["spec", "facts"])
async def test_the_reason_of_the_load_precedes_that_of_the_pair(reason: NoPair, where: str) -> None:
    """The pair has a drafter: placement gave it up, or the engine could not load it."""
    paired = resident("plain", paired=True)
    words: dict[str, Any] = {"no_pair_reason": reason.value, "no_pair_detail": "So it is."}
    facts = replace(paired.facts, drafter=None)
    loaded = (
        replace(paired, spec=replace(as_local(paired.spec), drafter=None, **words), facts=facts)
        if where == "spec"
        else replace(paired, facts=replace(facts, **words))
    )
    said = await specd(loaded)
    assert (said["drafter"], said["pair_source"]) == (None, None)
    assert why(said) == (reason.value, "So it is.")


async def test_the_pull_of_a_missing_drafter_is_shown() -> None:
    doing = "tiny:1b is being pulled."
    plain = resident("plain")
    assert (await specd(plain, doing))["detail"] == f"No drafter fits. {doing}"
    other = replace(plain, pair=replace(plain.pair, reason=NoPair.VOCABULARY_DIFFERS))
    assert (await specd(other, doing))["detail"] == "No drafter fits."
    paired = resident("plain", paired=True)
    assert (await specd(paired, doing))["detail"] == ""
    # The pull replaces a drafter that was chosen from the installed models.
    assert paired.pair.drafter is not None
    found = replace(paired.pair.drafter, source="shelf")
    shelved = replace(paired, pair=replace(paired.pair, drafter=found))
    assert (await specd(shelved, doing))["detail"] == doing


# --------------------------------------------------------------------------- speculation statistics


async def test_the_results_of_the_answers_are_shown() -> None:
    model_stats = answered(core.SpeculationState.ACTIVE, gain=1.62)
    said = await specd(replace(resident("plain", paired=True), model_stats=model_stats))
    assert (said["state"], said["gain"], said["requests"]) == ("active", 1.62, 12)
    assert (said["draft_n"], said["draft_n_accepted"]) == (9, 6)
    assert said["acceptance_rate"] == 0.6667
    assert why(said) == ("", "")


async def test_a_parked_drafter_has_a_reason() -> None:
    model_stats = answered(
        core.SpeculationState.PARKED, "does_not_pay", "tiny:latest rests: slow", 0.98
    )
    said = await specd(replace(resident("plain", paired=True), model_stats=model_stats))
    assert (said["state"], said["gain"]) == ("parked", 0.98)
    assert why(said) == ("does_not_pay", "tiny:latest rests: slow")


async def test_prompt_lookup_does_not_hide_the_reason_for_no_drafter() -> None:
    model_stats = answered(core.SpeculationState.ACTIVE, "low_acceptance", gain=1.1)
    said = await specd(replace(resident("plain"), model_stats=model_stats))
    assert (said["state"], said["drafter"]) == ("active", None)
    assert why(said) == ("drafter_not_found", "No drafter fits.")


@pytest.mark.parametrize(
    "how", [{"embeds": True}, {"no_pair_reason": NoPair.DISABLED_BY_USER.value}]
)
async def test_a_model_that_never_drafts_is_off_from_the_start(how: dict[str, Any]) -> None:
    plain = resident("plain")
    said = await specd(replace(plain, spec=replace(plain.spec, **how)))
    assert said["state"] == "off"


# --------------------------------------------------------------------------- show


async def shown(
    generation: FakeGeneration, model: str = "plain", loaded: Sequence[Resident] = ()
) -> dict[str, Any]:
    async with (
        client(
            generation, loaded=loaded, drafter_fetch_status=lambda _: "tiny:1b is being pulled."
        ) as http,
        http.post("/api/show", json={"model": model}) as reply,
    ):
        found: dict[str, Any] = await reply.json()
    return found


@pytest.mark.parametrize(
    "setting, at_load, of_answer, expected",
    [
        (None, None, None, (None, None)),
        (None, 0.43219, None, (0.4322, "measured")),
        (None, 0.43219, 0.5, (0.5, "measured")),
        (0.6, 0.6, 0.6, (0.6, "setting")),
    ],
)
async def test_ps_shows_the_newest_threshold_and_its_source(
    setting: float | None,
    at_load: float | None,
    of_answer: float | None,
    expected: tuple[float | None, str | None],
) -> None:
    loaded = resident("plain", paired=True)
    loaded = replace(
        loaded,
        spec=replace(loaded.spec, acceptance_threshold=setting),
        facts=replace(loaded.facts, threshold=at_load),
        model_stats=ModelStats(threshold=of_answer),
    )
    said = await specd(loaded)
    assert (said["threshold"], said["threshold_source"]) == expected
    pair = (await shown(FakeGeneration(), loaded=[loaded]))["specd"]
    assert (pair["threshold"], pair["threshold_source"]) == expected


async def test_show_names_the_drafter_or_the_reason_for_none() -> None:
    assert (await shown(FakeGeneration()))["specd"] == {
        "drafter": None,
        "pair_source": None,
        "rule": "",
        "reason": "drafter_not_found",
        "detail": "No drafter fits. tiny:1b is being pulled.",
        "expected": {},
        "pull": ["tiny:1b"],
        "threshold": None,
        "threshold_source": None,
        "exact": None,
    }
    found = core.Drafter(name="tiny:1b", weights=model_ref("tiny").weights, source="registry")
    assert (await shown(FakeGeneration(drafter=found)))["specd"] == {
        "drafter": "tiny:1b",
        "pair_source": "registry",
        "rule": "plain*",
        "reason": "",
        "detail": "",
        "expected": {"code": 1.5},
        "pull": [],
        "threshold": None,
        "threshold_source": None,
        "exact": None,
    }
    assert (await shown(FakeGeneration(), loaded=[resident("plain")]))["specd"]["exact"] == {
        "speculation": True,
        "parallel": False,
        "prompt_cache": False,
        "enforced": ["no_drafts"],
    }
