"""The parameters of sampling."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of the sampler; neutral values switch a filter off.

    The order of the filters is llama.cpp's: penalties, top_k, typical_p, top_p, min_p, temperature.
    seed: the seed itself, including 0; −1 was replaced by a random seed before.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
