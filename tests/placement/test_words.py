"""The line that says where a model went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specd import core
from specd.placement.planner import Machine
from specd.placement.words import in_words, short_name
from tests.placement.placing import Case, model
from tests.placement.shelves import GIB, gpus

LARGE = Case(target="llama3.3:70b Q4_K_M", drafter="llama3.2:1b Q4_K_M")


def line(case: Case, cards: str, give_up: core.GiveUp = core.GiveUp.ANYTHING) -> str:
    devices = gpus(cards)
    placement = case.place(devices, give_up)
    spec = core.EngineSpec(weights=case.target, drafter=case.drafter, n_ctx=131_072)
    request = core.PlacementRequest(spec=spec, least_ctx=4096, give_up=give_up)
    machine = Machine(devices=devices, ram_bytes=62 * GIB)
    return in_words(request, placement, machine, model(case.target).at(4096))


def test_a_model_that_is_cut_says_what_was_given_up() -> None:
    words = line(LARGE, "24")
    assert words.startswith("llama3.3:70b Q4_K_M: 2")
    assert " of 23.6 GiB free on NVIDIA GeForce RTX 4090 (0) and 1" in words
    assert " of 80 layers on the GPU; 4096 tokens of context, for 131072 find no room;" in words
    assert "; no drafter, for only 4" in words


def test_a_model_in_main_memory_says_so() -> None:
    words = line(replace(LARGE, drafter=None, n_ctx=131_072, ram=256), "")
    assert words.endswith(" of 62.0 GiB free in main memory; 131072 tokens of context")


def test_who_has_to_wait_is_told_for_what() -> None:
    words = line(LARGE, "24+8", core.GiveUp.DRAFTER)
    assert words.startswith("llama3.3:70b Q4_K_M needs about 4")
    assert words.endswith(
        ", and free are 23.6 GiB on NVIDIA GeForce RTX 4090 (0), 7.7 GiB on NVIDIA GeForce RTX 4060"
        " (1): another model has to leave first"
    )


@pytest.mark.parametrize(
    "path, name",
    [("/a/sha256-" + "0123456789abcdef" * 4, "sha256-0123456789ab"), ("/a/b.gguf", "b.gguf")],
)
def test_a_blob_has_a_short_name(path: str, name: str) -> None:
    assert short_name(path) == name
