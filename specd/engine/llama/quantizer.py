"""Write a GGUF's weights in another number format.

`python -m specd.engine quantize SOURCE TARGET TYPE` prints lines of "done/total" tensors on stdout.
On failure it prints the reason on stderr and exits with status 1.  It runs in a process of its own,
since llama.cpp may abort on a damaged file.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import llama_cpp

from specd.engine.llama.library import start
from specd.ipc.parent_death import die_with_parent

#: llama.h, `enum llama_ftype`.
TYPES: Final = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_K_S": 14, "Q4_K_M": 15, "BF16": 32}
_TENSOR: Final = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")


class QuantizeError(Exception):
    """llama.cpp could not quantize the file; the message is its reason."""


def quantize(source: Path, target: Path, file_type: str) -> None:
    """Quantize `source` into `target`.  Raises QuantizeError with llama.cpp's reason."""
    native_log = start()
    native_log.begin()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[file_type]
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
        raise QuantizeError(native_log.reason())


class _Progress(logging.Handler):
    """A log handler that prints progress; llama.cpp reports it only in its log."""

    def emit(self, record: logging.LogRecord) -> None:
        if found := _TENSOR.match(record.getMessage()):
            sys.stdout.write(f"{found[1]}/{found[2]}\n")
            sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="specd.engine quantize", description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("type", choices=sorted(TYPES))
    given = parser.parse_args(arguments)
    die_with_parent()
    native = logging.getLogger("specd.engine.llama")
    native.addHandler(_Progress())
    native.setLevel(logging.DEBUG)
    native.propagate = False
    try:
        quantize(given.source, given.target, given.type)
    except QuantizeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
