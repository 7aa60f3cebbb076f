"""The daemon's side of the processes in which chat templates run."""

from __future__ import annotations

import logging
from typing import Final

from specd.apart import Workers
from specd.errors import InvalidRequest
from specd.prompt.render_process import Job, Result

log = logging.getLogger(__name__)

#: A template that is being stopped leaves the others free.
_N_PROCESSES: Final = 4


class Renderer:
    """Renders in other processes, which are kept; safe to call from several threads, blocking."""

    def __init__(self) -> None:
        self.workers = Workers("specd.prompt", n_most=_N_PROCESSES, n_idle=_N_PROCESSES)

    def render(self, job: Job) -> str:
        """Raises as `render_chat` does; InvalidRequest where the template takes too long."""
        answer = self.workers.ask(job.encode())
        if answer is None:
            raise InvalidRequest("chat template: it takes too long")
        return Result.decode(answer).prompt()

    def start(self) -> None:
        """Have a process ready, so that the first prompt need not wait for it."""
        try:
            self.workers.start()
        except OSError as error:
            log.warning("no process for chat templates can be started: %s", error)

    def close(self) -> None:
        self.workers.close()
