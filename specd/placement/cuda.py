"""Work out which GPUs CUDA shows a process, and in which order, from the environment.

Needed if llama.cpp cannot be asked, and to tell the instances of a split GPU apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from specd.core import NVIDIA_UUID
from specd.placement.nvidia import Gpu

#: The variable that lists the GPUs that CUDA shows.
VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
#: The unit that CUDA counts: one whole GPU, or all instances of a split GPU.
_Card = list[Gpu]

#: CUDA reads a number as far as it goes: "1st" is 1.
_NUMBER = re.compile(r"\+?(\d+)", re.ASCII)


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs of CUDA_VISIBLE_DEVICES in its order, or all GPUs if it is not set.

    A process that sees an instance of a split GPU sees no other GPU.
    """
    cards = _in_cuda_order(gpus, environ.get("CUDA_DEVICE_ORDER", ""))
    variable = environ.get(VARIABLE)
    if variable is None:
        shown = [gpu for card in cards for gpu in card]
    else:
        shown = _chosen(cards, [entry.strip() for entry in variable.split(",")])
    instances = [gpu for gpu in shown if gpu.parent]
    return instances[:1] or shown


def _in_cuda_order(gpus: Sequence[Gpu], order: str) -> list[_Card]:
    by_place = sorted(gpus, key=lambda gpu: gpu.index)
    cards = [list(card) for _, card in groupby(by_place, key=lambda gpu: gpu.index)]
    if order == "PCI_BUS_ID" or not cards or not all(card[0].speed for card in cards):
        return cards
    # CUDA puts the fastest first by its own estimate; the order of the others is undefined.
    fastest = max(cards, key=lambda card: card[0].speed)
    return [fastest, *(card for card in cards if card is not fastest)]


def _chosen(cards: list[_Card], entries: list[str]) -> list[Gpu]:
    """Return the named GPUs up to the first entry that names none or several.

    Return no GPU at all if one is named twice.
    """
    find = _by_uuid if entries[0].startswith(NVIDIA_UUID) else _by_number
    chosen: list[Gpu] = []
    for entry in entries:
        if (gpu := find(cards, entry)) is None:
            break
        if gpu in chosen:
            return []
        chosen.append(gpu)
    return chosen


def _by_number(cards: list[_Card], entry: str) -> Gpu | None:
    number = _NUMBER.match(entry)
    if number is None or int(number[1]) >= len(cards):
        return None
    return cards[int(number[1])][0]


def _by_uuid(cards: list[_Card], entry: str) -> Gpu | None:
    """Return the GPU whose UUID starts with `entry`; None if several or none do.

    The UUID of a split GPU stands for its first instance.
    """
    if not entry.startswith(NVIDIA_UUID):
        return None
    named = {gpu.uuid: gpu for card in cards for gpu in card}
    named |= {card[0].parent: card[0] for card in cards if card[0].parent}
    found = [gpu for uuid, gpu in named.items() if uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None
