"""The daemon's client of the worker processes that render chat templates."""

from __future__ import annotations

import logging
from typing import Final

from specd.errors import InvalidRequest, StoreError, WorkerDied
from specd.prompt.render_process import Job, Result
from specd.worker_pool import WorkerPool

log = logging.getLogger(__name__)

#: The longest known templates have some ten thousand.
MAX_TEMPLATE_CHARACTERS: Final = 2**20
#: Several, so that a template which runs into its limits does not block the others.
_N_PROCESSES: Final = 4


class Renderer:
    """Pool of rendering processes.  Its methods block; call them from any thread."""

    def __init__(self) -> None:
        self.workers = WorkerPool("specd.prompt", max_workers=_N_PROCESSES, max_idle=_N_PROCESSES)

    def render(self, job: Job) -> str:
        """Return the prompt, rendered in another process.

        Raises what `render_chat` raises, InvalidRequest if the template takes too long, and
        WorkerDied if two processes died without reaching a limit.
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
        """Start a process now, so that the first prompt does not wait for it."""
        try:
            self.workers.start()
        except OSError as error:
            log.warning("cannot start a process for chat templates: %s", error)

    def close(self) -> None:
        self.workers.close()
