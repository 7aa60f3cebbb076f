"""The shared library: its start, the check of its struct layouts, and its log."""

from __future__ import annotations

import ctypes
import functools
import logging
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import llama_cpp

from specd.errors import LoadFailed, OutOfMemory, is_out_of_memory_message

log = logging.getLogger("specd.engine.llama")

VERSION = "0.3.36"
#: ggml.h: debug 1, info 2, warn 3, error 4, and 5 to continue a line (the bindings are one off).
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
_BUFFER = re.compile(r": +(\S+) +(?:DSV4 \S+ )?(\w+) buffer size = +([0-9.]+) MiB")
#: A layer with a place in the cache whose size follows, and that size.
_LAYER = re.compile(r"[:,] layer +(\d+): dev = ")
_CACHE = re.compile(r": size = +([0-9.]+) MiB \( *(\d+) cells,")
_MIB = 1 << 20


#: Warnings without meaning here.  llama.cpp compares the whole cache, which all slots share, with
#: the context length of the training; and images in a plane leave gaps between positions.
_HARMLESS_WARNINGS = ("n_ctx_seq", "non-consecutive token position")
#: Warnings for every buffer that cannot be locked in memory (SPECD_MLOCK); logged once.
_LOGGED_ONCE = ("failed to mlock", "RLIMIT_MEMLOCK")


class BufferUse(Enum):
    """The content of a buffer.  EXTRAS: the weights of adapters and of a projector."""

    WEIGHTS = "weights"
    EXTRAS = "extras"
    CACHE = "cache"
    STATES = "states"
    LOGITS = "logits"
    SCRATCH = "scratch"


_BUFFER_USES = {
    "model": BufferUse.WEIGHTS,
    "LoRA": BufferUse.EXTRAS,
    "KV": BufferUse.CACHE,
    "RS": BufferUse.STATES,
    "state": BufferUse.STATES,
    "output": BufferUse.LOGITS,
    "compute": BufferUse.SCRATCH,
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that llama.cpp logged.  name: such as CUDA0, CPU_Mapped or CUDA_Host.

    layers, n_cells: of the last buffer of a cache.
    """

    name: str
    use: BufferUse
    n_bytes: int
    layers: tuple[int, ...] = ()
    n_cells: int = 0


class NativeLog:
    """The receiver of llama.cpp's log: passes lines on, keeps errors and buffer sizes.

    The callback may run in any thread of llama.cpp, so it only appends.
    """

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self.buffers: list[Buffer] = []
        self._level = 1
        self._line = ""
        self._layers: list[int] = []
        self._logged_once: set[str] = set()
        self.callback = llama_cpp.llama_log_callback(self._receive)
        llama_cpp.llama_log_set(self.callback, ctypes.c_void_p(0))

    def _receive(self, level: int, text: bytes, _user_data: Any) -> None:
        # A Python exception must never travel into native code.
        try:
            if level in _LEVELS:
                self._level = level
            self._line += text.decode("utf-8", "replace")
            *lines, self._line = self._line.split("\n")
            for line in lines:
                self._parse_line(line)
        except Exception:  # noqa: BLE001
            self._line = ""

    def _parse_line(self, line: str) -> None:
        level = _LEVELS[self._level]
        if level == logging.ERROR:
            self.errors.append(line.strip())
        if found := _BUFFER.search(line):
            n_bytes = int(float(found[3]) * _MIB)
            self.buffers.append(
                Buffer(found[1], _BUFFER_USES.get(found[2], BufferUse.SCRATCH), n_bytes)
            )
        elif found := _LAYER.search(line):
            self._layers.append(int(found[1]))
        elif found := _CACHE.search(line):
            self._end_cache(int(float(found[1]) * _MIB), int(found[2]))
        if level == logging.WARNING and (
            any(words in line for words in _HARMLESS_WARNINGS) or self._was_logged(line)
        ):
            level = logging.DEBUG
        log.log(level, "%s", line)

    def _end_cache(self, n_bytes: int, n_cells: int) -> None:
        """Add layers and cells to a cache's last buffer, and the size if it was only simulated."""
        layers, self._layers = tuple(self._layers), []
        if not layers or not self.buffers:
            return
        last = self.buffers[-1]
        if last.use in {BufferUse.CACHE, BufferUse.STATES}:
            size = last.n_bytes or n_bytes
            self.buffers[-1] = replace(last, n_bytes=size, layers=layers, n_cells=n_cells)

    def _was_logged(self, line: str) -> bool:
        words = {words for words in _LOGGED_ONCE if words in line}
        was_logged = bool(words & self._logged_once)
        self._logged_once |= words
        return was_logged

    def begin(self) -> None:
        """Clear the errors and buffers of earlier loads."""
        self.errors.clear()
        self.buffers.clear()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Forget what is logged meanwhile: the buffers and errors of a context for a check."""
        buffers, errors = list(self.buffers), list(self.errors)
        try:
            yield
        finally:
            self.buffers[:] = buffers
            self.errors.clear()
            self.errors.extend(errors)

    def reason(self) -> str:
        """Return the first error since begin(), which is the most specific one."""
        for line in self.errors:
            _, _, reason = line.partition(": ")
            if reason:
                return reason
        return "llama.cpp gave no reason"

    def load_error(self, what: str) -> LoadFailed:
        """Return the error that `what` failed; OutOfMemory if any error since begin() says so."""
        kind = OutOfMemory if any(map(is_out_of_memory_message, self.errors)) else LoadFailed
        return kind(f"{what}: {self.reason()}")


def native_function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of llama.cpp or ggml that the bindings lack, or declare otherwise."""
    function = llama_cpp.llama_cpp._lib[name]  # noqa: SLF001
    function.argtypes, function.restype = arguments, result
    return function


@functools.cache
def start() -> NativeLog:
    """Initialise llama.cpp once per process; return the log, which native code calls until its end.

    Raises RuntimeError if the bindings are not the version whose struct layouts this code uses,
    because a mismatch would corrupt memory silently.
    """
    if llama_cpp.__version__ != VERSION:
        message = f"llama-cpp-python {VERSION} is needed, {llama_cpp.__version__} is installed"
        raise RuntimeError(message)
    native_log = NativeLog()
    llama_cpp.llama_backend_init()
    defaults = llama_cpp.llama_context_default_params()
    seen = (defaults.n_ctx, defaults.n_batch, defaults.n_ubatch, defaults.n_seq_max)
    if seen != (512, 2048, 512, 1) or defaults.n_threads != 4:
        raise RuntimeError("the llama.cpp library does not match its Python bindings")
    return native_log
