"""Read access to the models on disk: list, resolve and show.  Nothing here writes."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from specd import core
from specd.errors import ModelNotFound, StoreError, Unsupported
from specd.store import name as names
from specd.store import safe_files
from specd.store.demo import stored_demo
from specd.store.file_identity import FileCache, stamp_if_readable
from specd.store.gguf import read_header
from specd.store.gguf_metadata import GgufMetadata, has_audio_encoder, metadata_of
from specd.store.listing import ModelInfo, ModelSummary, describe, summarize
from specd.store.manifest import read_manifest
from specd.store.manifest_tree import ManifestTree
from specd.store.name import ModelSource, Name
from specd.store.shape import Shape, shape_of
from specd.store.stored_model import StoredModel, from_manifest
from specd.store.templating import choose_templating

log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often a read starts again because the model changed meanwhile; the last error is raised.
_MAX_CHANGES: Final = 8
#: Reads a GGUF file; raises StoreError.
Read = Callable[[Path], tuple[GgufMetadata, Shape]]


class Library:
    """Read-only view of Ollama's store below `root`, plus the demo pair.

    demo: True lists the demo always, False never, None while the store holds no manifest.
    go_template: True prefers Go templates over Jinja, False prefers Jinja, None compares them.
    read: replaces the reader of GGUF headers, for example by one with a cache on disk.
    Methods block on files: call them off the event loop.  Safe to call from several threads.
    """

    def __init__(
        self,
        root: Path,
        *,
        demo: bool | None = None,
        go_template: bool | None = None,
        read: Read | None = None,
    ) -> None:
        self._root = root
        self._manifests = root / "manifests"
        self._tree = ManifestTree(self._manifests)
        self._demo = demo
        self._prefer_go = go_template
        self._stored = FileCache(self._read_stored)
        self._headers = FileCache(read or _read_header)
        self._sounds = FileCache(lambda path: has_audio_encoder(read_header(path)))
        self._logged_errors: set[str] = set()

    def access_problem(self) -> str:
        """Return why the store cannot be read ("/models may not be read by specd"), "" if it can.

        A missing store is no problem.
        """
        for folder in (self._root, self._manifests):
            try:
                folder.stat()
            except (FileNotFoundError, NotADirectoryError):  # the writer reports the latter
                return ""
            except OSError:
                return f"{folder} may not be read by {_user()}"
            if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                return f"{folder} may not be read by {_user()}"
        return ""

    def list(self) -> list[ModelSummary]:
        """Return all models, newest first; log and skip a model that cannot be read."""
        summaries = [self._summary(stored) for stored in self.stored()]
        return sorted(summaries, key=lambda summary: summary.modified_at, reverse=True)

    def names(self) -> tuple[Name, ...]:
        """Return the names of all manifests, and the demo's if listed, without opening a file."""
        found = tuple(name for name, _ in self._tree.files())
        demo = self._demo_if_listed(store_is_empty=not found)
        return (*found, demo.name) if demo else found

    def stored(self) -> Iterator[StoredModel]:
        """Yield all models by name, without opening weights; log and skip a damaged one."""
        empty = True
        for _, path in self._tree.files():
            empty = False
            try:
                yield self._stored.get(path)
            except StoreError as error:
                self._log_once(error)
        if demo := self._demo_if_listed(store_is_empty=empty):
            yield demo

    def stamp(self) -> object:
        """Return a value that changes when a model is added, removed or changed; cheap."""
        return self._tree.stamp()

    def version(self, name: str) -> object:
        """Return a value that changes when the named model is added, deleted or written again.

        A manifest is deleted before its blobs, so a missing blob implies a new version.  Raises
        InvalidName.
        """
        path = self._path(names.parse(name))
        return None if path is None else (path, stamp_if_readable(path))

    def resolve(self, name: str) -> core.LocalModel:
        """Return the named model, ready to be loaded.

        Raises InvalidName, ModelNotFound with the name as given, StoreError if its files are
        damaged, Unsupported if the model is not on this machine.
        """
        return self._retry_if_changed(name, self._resolve)

    def _resolve(self, name: str) -> core.LocalModel:
        version = self.version(name)
        stored = self._find(name)
        if stored is None:
            raise ModelNotFound(name)
        if stored.config.remote_host:
            raise Unsupported("ollama cloud is disabled: remote model is unavailable")
        facts = self.facts(stored.weights)
        return core.LocalModel(
            version=version,
            name=stored.name.short,
            full_name=stored.name.full,
            digest=stored.digest,
            weights=stored.weights,
            draft=stored.last_path("draft"),
            chat_template=facts.chat_template,
            go_template=stored.template,
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
            system=stored.system,
            parameters=stored.parameters,
            messages=stored.messages,
            capabilities=self._read_summary(stored).capabilities,
            architecture=facts.architecture,
            n_ctx_train=facts.n_ctx_train,
            templating=self._templating(stored, facts, stored.template),
            adapters=stored.paths("adapter"),
            projector=stored.last_path("projector"),
            family=stored.config.model_family or facts.architecture,
            renderer=stored.config.renderer,
            parser=stored.config.parser,
            infill=facts.infill,
        )

    def show(self, name: str, *, verbose: bool = False) -> ModelInfo:
        """Return a model's details for `/api/show`.

        Raises what `resolve` raises; ModelNotFound has the short name here, as in Ollama.
        """
        return self._retry_if_changed(name, partial(self._show, verbose=verbose))

    def _show(self, name: str, *, verbose: bool) -> ModelInfo:
        stored = self._find(name)
        if stored is None:
            raise ModelNotFound(names.parse(name).short)
        if stored.config.remote_host:
            raise Unsupported("ollama cloud is disabled: remote model details are unavailable")
        projector = stored.last_path("projector")
        chosen = self._templating(stored, self.facts(stored.weights), stored.template)
        return describe(
            stored,
            self._read_summary(stored),
            read_header(stored.weights),
            read_header(projector) if projector else None,
            chosen,
            verbose=verbose,
        )

    def facts(self, weights: Path) -> GgufMetadata:
        """Return the metadata of a GGUF.  Raises StoreError."""
        return self._headers.get(weights)[0]

    def shape(self, weights: Path) -> Shape:
        """Return the shape of a GGUF, from which memory is estimated.  Raises StoreError."""
        return self._headers.get(weights)[1]

    # ------------------------------------------------------------------ finding

    def _retry_if_changed(self, name: str, read: Callable[[str], T]) -> T:
        """Return `read(name)`; read again if it fails because the model changed meanwhile."""
        for _ in range(_MAX_CHANGES):
            version = self.version(name)
            try:
                return read(name)
            except StoreError:
                if self.version(name) == version:
                    raise
        return read(name)

    def _find(self, text: str) -> StoredModel | None:
        name = names.parse(text)
        if name.source is ModelSource.CLOUD:
            raise Unsupported("ollama cloud is disabled: remote model is unavailable")
        if (path := self._path(name)) is not None:
            return self._stored.get(path)
        # The demo can be used by name even when it is not listed, unless it is disabled.
        if name.key == names.parse("specd-demo").key and self._demo is not False:
            return stored_demo()
        return None

    def _path(self, name: Name) -> Path | None:
        """Return the path of the manifest, whose case may differ; None if there is none."""
        path = name.path(self._manifests)
        if not safe_files.is_file(path):
            found = (path for known, path in self._tree.files() if known.key == name.key)
            path = next(found, path)
        return path if safe_files.is_file(path) else None

    def _demo_if_listed(self, *, store_is_empty: bool) -> StoredModel | None:
        is_listed = store_is_empty if self._demo is None else self._demo
        return stored_demo() if is_listed else None

    def _read_stored(self, path: Path) -> StoredModel:
        name = names.from_parts(path.relative_to(self._manifests).parts)
        assert name is not None, f"{path} was found by its name"
        return from_manifest(self._root, name, read_manifest(path))

    # ---------------------------------------------------------------- summaries

    def _summary(self, stored: StoredModel) -> ModelSummary:
        """Return what can be read of a model; log why the rest cannot."""
        try:
            return self._read_summary(stored)
        except StoreError as error:
            self._log_once(error)
        template = facts = None
        with suppress(StoreError):
            template = stored.template
            facts = self.facts(stored.weights)
        chosen = self._templating(stored, facts, template)
        return summarize(stored, facts, template, chosen, has_sound=False)

    def _read_summary(self, stored: StoredModel) -> ModelSummary:
        """Return a model's summary.  Raises StoreError if one of its files cannot be read."""
        if stored.config.remote_host:
            return summarize(stored, None, None, self._templating(stored, None, None))
        template, facts = stored.template, self.facts(stored.weights)
        has_sound = any(self._sounds.get(path) for path in stored.paths("projector"))
        chosen = self._templating(stored, facts, template)
        return summarize(stored, facts, template, chosen, has_sound=has_sound)

    def _templating(
        self, stored: StoredModel, facts: GgufMetadata | None, go_template: str | None
    ) -> core.Templating:
        return choose_templating(
            facts.chat_template if facts else None,
            go_template,
            stored.config,
            architecture=facts.architecture if facts else "",
            prefer_go=self._prefer_go,
        )

    def _log_once(self, error: StoreError) -> None:
        """Log an error once, not at every listing."""
        if str(error) not in self._logged_errors:
            self._logged_errors.add(str(error))
            log.warning("%s", error)


def _read_header(path: Path) -> tuple[GgufMetadata, Shape]:
    """Parse a header once for both results, since it may have megabytes.  Raises StoreError."""
    header = read_header(path)
    return metadata_of(header), shape_of(header)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container, a user may have no name
        return f"user {os.geteuid()}"
