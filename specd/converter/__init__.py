"""Conversion of safetensors to GGUF with llama.cpp's converter, in a separate environment."""

from __future__ import annotations

from specd.converter.conversion import ConversionSource, convert, is_convertible_file, out_type
from specd.converter.environment import Environment, find_environment, prepare

__all__ = [
    "ConversionSource",
    "Environment",
    "convert",
    "find_environment",
    "is_convertible_file",
    "out_type",
    "prepare",
]
