"""Wrapper that runs llama.cpp's converter on untrusted files, in the converter's environment.

`python -I program.py SCRIPT MEMORY_BYTES CPU_S FILE_BYTES -- ARGUMENTS` runs SCRIPT with ARGUMENTS.
It runs no code from the model's files, unpickles nothing, and uses no network.  Each line of JSON
on standard output is progress in bytes or an error.  It exits when standard input ends, because
specd has ended then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import resource
import runpy
import sys
import threading
from pathlib import Path
from typing import Any, Final

#: Audit events that a conversion does not need, but malicious files might cause.
_FORBIDDEN: Final = frozenset(
    (
        *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
        "pickle.find_class",
    )
)
#: If memory runs out, the kernel ends this process first.
_OOM_SCORE: Final = "1000"
_TOKENIZER: Final = "BPE pre-tokenizer was not recognized"


def write_message(**fields: object) -> None:
    sys.__stdout__.write(json.dumps(fields) + "\n")  # type: ignore[union-attr]  # it is a pipe
    sys.__stdout__.flush()  # type: ignore[union-attr]


class ProgressBar:
    """Replacement for tqdm's bar, to which the GGUF writer reports its bytes."""

    def __init__(self, *_: object, total: int | None = None, **__: object) -> None:
        self._total, self._done = total or 0, 0

    def update(self, n: int = 1) -> None:
        self._done += n
        write_message(done=self._done, total=self._total)

    def reset(self, total: int | None = None) -> None:
        self._total, self._done = total or 0, 0

    def set_description(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        pass


class LastErrorHandler(logging.Handler):
    """Log handler that keeps the last error of the converter."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def limit(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    for what, most in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def exit_with_parent() -> None:
    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def install_audit_hook() -> None:
    """Import what the converter needs, then forbid operations that only malicious code needs."""
    torch: Any = importlib.import_module("torch")
    progress: Any = importlib.import_module("tqdm")
    dynamic: Any = importlib.import_module("transformers.dynamic_module_utils")
    # Replace them before any other part of transformers imports them.
    dynamic.resolve_trust_remote_code = lambda *_, **__: False
    dynamic.get_class_from_dynamic_module = _refuse_code
    torch.load = _refuse_code
    progress.tqdm = ProgressBar
    sys.addaudithook(_refuse)


def _refuse_code(*_: object, **__: object) -> None:
    raise PermissionError("the model needs its own code, which specd does not run")


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event in _FORBIDDEN:
        raise PermissionError(f"the converter is not allowed to use {event}")


def explain_error(error: BaseException, last_error: str) -> str:
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "it needs more memory than is free"
    if _TOKENIZER in str(error):
        return "llama.cpp does not know its tokenizer"
    if isinstance(error, SystemExit):
        return last_error or "it gave up without a reason"
    words = " ".join(str(error).split())[:500]
    return f"{words or 'no reason was given'} ({type(error).__name__})"


def main() -> int:
    script, *limits = sys.argv[1:5]
    exit_with_parent()
    limit(*map(int, limits))
    sys.path.insert(0, str(Path(script).parent))
    install_audit_hook()
    last = LastErrorHandler()
    logging.getLogger().addHandler(last)
    sys.argv = [script, *sys.argv[6:]]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:  # noqa: BLE001  # specd sees nothing but this message
        if isinstance(error, SystemExit) and not error.code:
            return 0
        write_message(error=explain_error(error, last.text))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
