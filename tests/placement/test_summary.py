"""Check the log line about the placement of a model."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specd import core
from specd.placement.placer import describe_placement
from specd.placement.planner import MachineMemory
from specd.placement.shortage import short_name
from tests.placement.placement_cases import Case, model
from tests.placement.published_models import GIB, gpus

LARGE = Case(target="llama3.3:70b Q4_K_M", drafter="llama3.2:1b Q4_K_M")


def line(case: Case, cards: str, give_up: core.GiveUp = core.GiveUp.ANYTHING) -> str:
    devices = gpus(cards)
    placement = case.place(devices, give_up)
    spec = core.EngineSpec(weights=case.target, drafter=case.drafter, n_ctx=131_072)
    request = core.PlacementRequest(spec=spec, min_ctx=4096, give_up=give_up, name=case.name)
    machine = MachineMemory(devices=devices, ram_bytes=62 * GIB, total_ram_bytes=64 * GIB)
    return describe_placement(request, placement, machine, model(case.target).at(4096))


def test_the_line_of_a_cut_model_names_the_losses() -> None:
    words = line(LARGE, "24")
    assert words.startswith("llama3.3:70b Q4_K_M takes 2")
    assert " of 23.6 GiB free on NVIDIA GeForce RTX 4090 (0) and 1" in words
    assert " of 80 layers on the GPU; 4096 tokens of context (131072 do not fit);" in words
    assert "; no drafter, because only 4" in words


def test_the_line_of_a_model_in_main_memory() -> None:
    words = line(replace(LARGE, drafter=None, n_ctx=131_072, ram=256), "")
    assert words.endswith(" of 62.0 GiB free in main memory; 131072 tokens of context")


def test_the_line_of_a_waiting_model_has_the_reason() -> None:
    words = line(LARGE, "24+8", core.GiveUp.DRAFTER)
    assert words.startswith("llama3.3:70b Q4_K_M needs about 4")
    assert words.endswith(
        ", and free are 23.6 GiB on NVIDIA GeForce RTX 4090 (0), 7.7 GiB on NVIDIA GeForce RTX 4060"
        " (1): another model has to be unloaded first"
    )


SMALL = Case(target="llama3.2:1b Q4_K_M", n_ctx=4096, name="mine:latest")


def test_a_model_has_its_readable_name() -> None:
    assert line(SMALL, "24").startswith("mine:latest takes 1.")


def test_free_memory_that_is_reserved_does_not_count() -> None:
    card = replace(gpus("24")[0], free_bytes=GIB // 2)
    request = SMALL.request((card,), core.GiveUp.NOTHING)
    placement = SMALL.place((card,), core.GiveUp.NOTHING)
    machine = MachineMemory(devices=(card,), ram_bytes=62 * GIB, total_ram_bytes=64 * GIB)
    words = describe_placement(request, placement, machine, model(SMALL.target).at(4096))
    assert not placement.fits
    assert words.endswith(
        "and free are 512 MiB on NVIDIA GeForce RTX 4090 (0):"
        " another model has to be unloaded first"
    )
    card = replace(card, free_bytes=2 * GIB)
    assert not SMALL.place((card,), core.GiveUp.NOTHING).fits
    assert "and it may take 665 MiB of 2.0 GiB free on" in (
        SMALL.place((card,), core.GiveUp.NOTHING).shortage
    )


def test_the_line_of_a_pair_that_waits_for_memory() -> None:
    case = replace(SMALL, target="llama3.1:8b Q4_K_M", drafter="llama3.2:1b Q4_K_M")
    card = replace(gpus("24")[0], free_bytes=7 * GIB)
    shortage = case.place((card,), core.GiveUp.NOTHING).shortage
    assert shortage.startswith("mine:latest with llama3.2:1b Q4_K_M needs about 5.")


def test_the_line_of_an_attempt_without_memory_has_the_shortage() -> None:
    case = replace(SMALL, target="llama3.3:70b Q4_K_M", drafter="llama3.2:1b Q4_K_M", ram=22)
    placement = case.place(())
    assert placement.fits
    assert re.fullmatch(
        r"mine:latest needs about 4\d\.\d GiB, and free are 20\.0 GiB in main memory",
        placement.shortage,
    )
    assert not replace(case, ram=128).place(()).shortage


@pytest.mark.parametrize(
    "path, name",
    [("/a/sha256-" + "0123456789abcdef" * 4, "sha256-0123456789ab"), ("/a/b.gguf", "b.gguf")],
)
def test_a_blob_has_a_short_name(path: str, name: str) -> None:
    assert short_name(path) == name
