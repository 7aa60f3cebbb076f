"""All models that requests can name: those of the store, then those of upstream servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache

from specd import core
from specd.errors import InvalidName, ModelNotFound
from specd.store import Library, ModelDetails, ModelInfo, ModelSummary
from specd.store import name as names

log = logging.getLogger(__name__)


class Catalog:
    """Finds models by name; a model of the store hides an upstream one of the same name.

    upstream_models: returns the models of all upstream servers.
    """

    def __init__(
        self,
        library: Library,
        upstream_models: Callable[[], Iterable[core.UpstreamModel]] = lambda: (),
    ) -> None:
        self._library = library
        self._upstream_models = upstream_models
        self._since = datetime.now().astimezone()

    def list(self) -> Sequence[ModelSummary]:
        """Return the models of the store, newest first, then the upstream ones.  Reads files."""
        local = self._library.list()
        hidden = {_key(summary.name) for summary in local}
        upstream = [model for key, model in self._upstream().items() if key not in hidden]
        return [*local, *map(self._summary, upstream)]

    def resolve(self, name: str) -> core.ModelRef:
        """Return the named model.  Raises what `Library.resolve` raises.  Reads files."""
        try:
            return self._library.resolve(name)
        except ModelNotFound:
            if (model := self._upstream().get(_key(name))) is None:
                raise
            return model

    def show(self, name: str, *, verbose: bool = False) -> ModelInfo:
        """Return the details of a model.  Raises what `Library.show` raises.  Reads files."""
        try:
            return self._library.show(name, verbose=verbose)
        except ModelNotFound:
            if (model := self._upstream().get(_key(name))) is None:
                raise
            return ModelInfo.of_upstream(self._summary(model))

    def _upstream(self) -> dict[str | None, core.UpstreamModel]:
        """Return key → upstream model; of two with the same name the first."""
        found = {_key(model.name): model for model in reversed([*self._upstream_models()])}
        found.pop(None, None)
        return found

    def _summary(self, model: core.UpstreamModel) -> ModelSummary:
        return ModelSummary(
            name=model.name,
            digest=model.digest,
            size_bytes=0,
            modified_at=self._since,
            details=ModelDetails(family=model.family, context_length=model.n_ctx_train),
            capabilities=model.capabilities,
            remote_model=model.upstream_name,
            remote_host=model.engine,
        )


@lru_cache(maxsize=4096)
def _key(name: str) -> str | None:
    """Return the name as it is compared; None if a model cannot have this name."""
    try:
        return names.parse(name).key
    except InvalidName:
        log.warning("the model %r of an upstream server has no valid name: it is not listed", name)
        return None
