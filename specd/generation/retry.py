"""Decide whether a failed request is tried again, and with which model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from specd import core, errors

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Most retries of one request because its model changed.
_MAX_CHANGES: Final = 8


class Models(Protocol):
    """The store of models: `store.Library`."""

    def resolve(self, name: str) -> core.ModelRef: ...

    def version(self, name: str) -> object: ...


class RetryPolicy:
    """The rule by which one request is tried again after an error, before its answer has begun.

    There are two reasons.  If its engine died, the request is tried once more: the engine may have
    died while idle, but the request may also be the cause.  If its model was deleted or replaced
    before its files were read, the next attempt finds the new model, or none.
    """

    def __init__(self, models: Models, name: str) -> None:
        self._models = models
        self._name = name
        self._version: object = None
        self._has_crashed = False
        self._n_changes = 0

    def resolve(self) -> core.ModelRef:
        """Return the model as it is now.  Reads files.  Raises what `Library.resolve` raises."""
        self._version = self._models.version(self._name)
        return self._models.resolve(self._name)

    async def should_retry(self, error: errors.SpecdError) -> bool:
        """Return whether to start again with `resolve`."""
        if isinstance(error, errors.EngineCrashed) and not self._has_crashed:
            self._has_crashed = True
            log.warning("%s: the engine crashed before it answered, trying once more", self._name)
            return True
        if not isinstance(error, errors.StoreError | errors.LoadFailed):
            return False
        if await asyncio.to_thread(self._models.version, self._name) == self._version:
            return False
        self._n_changes += 1
        if self._n_changes > _MAX_CHANGES:
            return False
        log.info("%s was deleted or replaced during the request, trying once more", self._name)
        return True


async def with_retries(
    models: Models, name: str, act: Callable[[core.ModelRef], Awaitable[T]]
) -> T:
    """Resolve the model and return the result of `act`; repeat both as RetryPolicy decides."""
    retry_policy = RetryPolicy(models, name)
    while True:
        try:
            return await act(await asyncio.to_thread(retry_policy.resolve))
        except errors.SpecdError as error:
            if not await retry_policy.should_retry(error):
                raise
