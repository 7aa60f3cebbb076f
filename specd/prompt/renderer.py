"""The daemon's side of the processes in which chat templates run."""

from __future__ import annotations

import logging
from typing import Final

from specd.errors import InvalidRequest, StoreError, WorkerDied
from specd.prompt.render_process import Job, Result
from specd.worker_pool import WorkerPool

log = logging.getLogger(__name__)

#: The longest have some ten thousand.
MAX_TEMPLATE_CHARACTERS: Final = 2**20
#: A template that is being stopped leaves the others free.
_N_PROCESSES: Final = 4


class Renderer:
    """Renders in other processes, which are kept; safe to call from several threads, blocking."""

    def __init__(self) -> None:
        self.workers = WorkerPool("specd.prompt", max_workers=_N_PROCESSES, max_idle=_N_PROCESSES)

    def render(self, job: Job) -> str:
        """Return the prompt, rendered in another process.

        Raises as `render_chat` does; InvalidRequest where the template takes too long; WorkerDied
        where two processes ended over it for no reason of its own.
        """
        if len(job.template) > MAX_TEMPLATE_CHARACTERS:
            raise StoreError(
                "the model's chat template is damaged: it has more than"
                f" {MAX_TEMPLATE_CHARACTERS} characters"
            )
        try:
            answer = self.workers.call(job.encode())
        except WorkerDied as error:
            raise WorkerDied(f"chat template: {error}") from error
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
