"""Makes GGUFs of safetensors: llama.cpp's own converter, in an environment of its own."""

from __future__ import annotations

from specd.converter.conversion import Source, convert, out_type, takes
from specd.converter.environment import Environment, environment_in, prepare

__all__ = ["Environment", "Source", "convert", "environment_in", "out_type", "prepare", "takes"]
