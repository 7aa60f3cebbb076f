"""The models on disk: listed, resolved and shown.  Reads alone; nothing here writes."""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from specd import core
from specd.errors import ModelNotFound, StoreError, Unsupported
from specd.store import name as names
from specd.store import safe_open
from specd.store.demo import stored_demo
from specd.store.file_cache import FileCache
from specd.store.gguf import read_header
from specd.store.gguf_metadata import GgufMetadata, has_audio_encoder, metadata_of
from specd.store.listing import ModelInfo, ModelSummary, describe, summarize
from specd.store.manifest import read_manifest
from specd.store.manifest_tree import ManifestTree, identity
from specd.store.name import ModelSource, Name
from specd.store.shape import Shape, shape_of
from specd.store.stored_model import StoredModel, from_manifest
from specd.store.templating import choose_templating

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Of one model, while it is read once.  The last error is then told.
_MAX_CHANGES: Final = 8
#: Raises StoreError.
Read = Callable[[Path], tuple[GgufMetadata, Shape]]


class Library:
    """Ollama's store below `root`, plus the demo pair.

    demo: True lists the demo always, False never, None while the store holds no manifest.
    go_template: True has Go templates win over Jinja ones, False lose, None by what they can do.
    read: what says what is in a GGUF's header; one that knows it from before is quicker.
    Methods read files and may take a while on a cold store: call them off the event loop.
    Safe to call from several threads.
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
        self._sounds = FileCache(lambda path: has_audio_encoder(read_header(path)))  # of projectors
        self._complaints: set[str] = set()

    def access_problem(self) -> str:
        """Why no model here can be found: "/models may not be read by specd"; "" where none does.

        A store that is not there yet is in nobody's way.
        """
        for folder in (self._root, self._manifests):
            try:
                folder.stat()
            except (FileNotFoundError, NotADirectoryError):  # the writer says the latter
                return ""
            except OSError:
                return f"{folder} may not be read by {_user()}"
            if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                return f"{folder} may not be read by {_user()}"
        return ""

    def list(self) -> list[ModelSummary]:
        """All models, newest first.  One that cannot be read costs a log line, not the list."""
        summaries = [self._summary(stored) for stored in self.stored()]
        return sorted(summaries, key=lambda summary: summary.modified_at, reverse=True)

    def names(self) -> tuple[Name, ...]:
        """The names of all manifests, and of the demo while it is listed; no file is opened."""
        found = tuple(name for name, _ in self._tree.files())
        demo = self._demo_if_listed(store_is_empty=not found)
        return (*found, demo.name) if demo else found

    def stored(self) -> Iterator[StoredModel]:
        """All models, by name; no weights are opened.  One that is damaged costs a log line."""
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
        """Equal as long as no model was added, removed or changed; quickly told."""
        return self._tree.stamp()

    def version(self, name: str) -> object:
        """Return what differs once the model of that name was added, deleted or written again.

        Its manifest is deleted before its blobs, so that a blob that is missing for this reason
        has changed it.  Raises InvalidName.
        """
        path = self._path(names.parse(name))
        return None if path is None else (path, identity(path))

    def resolve(self, name: str) -> core.ModelRef:
        """The model of that name, ready to be loaded.

        Raises InvalidName, ModelNotFound with the name as given, StoreError where its files are
        damaged, Unsupported for a model that is not on this machine.
        """
        return self._retry_if_changed(name, self._resolve)

    def _resolve(self, name: str) -> core.ModelRef:
        stored = self._find(name)
        if stored is None:
            raise ModelNotFound(name)
        _refuse_remote_model(stored)
        facts = self.facts(stored.weights)
        return core.ModelRef(
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
            capabilities=self._summary(stored).capabilities,
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
        """Raises like `resolve`, but names an unknown model by its short form, as Ollama does."""
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
            self._summary(stored),
            read_header(stored.weights),
            read_header(projector) if projector else None,
            chosen,
            verbose=verbose,
        )

    def facts(self, weights: Path) -> GgufMetadata:
        """What a GGUF says of itself; raises StoreError."""
        return self._headers.get(weights)[0]

    def shape(self, weights: Path) -> Shape:
        """What a GGUF says of the memory it takes; raises StoreError."""
        return self._headers.get(weights)[1]

    # ------------------------------------------------------------------ finding

    def _retry_if_changed(self, name: str, read: Callable[[str], T]) -> T:
        """What `read` makes of the model; of one that is deleted or replaced meanwhile, the new."""
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
        # Named outright the demo answers even where the list leaves it out, unless it is forbidden.
        if name.key == names.parse("specd-demo").key and self._demo is not False:
            return stored_demo()
        return None

    def _path(self, name: Name) -> Path | None:
        """Its manifest, which may be spelled in another case."""
        path = name.path(self._manifests)
        if not safe_open.is_file(path):
            path = self._find_ignoring_case(name) or path
        return path if safe_open.is_file(path) else None

    def _find_ignoring_case(self, name: Name) -> Path | None:
        found = (path for known, path in self._tree.files() if known.key == name.key)
        return next(found, None)

    def _demo_if_listed(self, *, store_is_empty: bool) -> StoredModel | None:
        wanted = store_is_empty if self._demo is None else self._demo
        return stored_demo() if wanted else None

    def _read_stored(self, path: Path) -> StoredModel:
        name = names.from_parts(path.relative_to(self._manifests).parts)
        assert name is not None, f"{path} was found by its name"
        return from_manifest(self._root, name, read_manifest(path))

    # ---------------------------------------------------------------- summaries

    def _summary(self, stored: StoredModel) -> ModelSummary:
        facts = template = None
        has_sound = False
        try:
            if not stored.config.remote_host:
                template = stored.template
                facts = self.facts(stored.weights)
                has_sound = any(self._sounds.get(path) for path in stored.paths("projector"))
        except StoreError as error:
            self._log_once(error)
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
        """Log a damage once, not at every listing."""
        if str(error) not in self._complaints:
            self._complaints.add(str(error))
            log.warning("%s", error)


def _read_header(path: Path) -> tuple[GgufMetadata, Shape]:
    """Both at once: a header has megabytes.  Raises StoreError."""
    header = read_header(path)
    return metadata_of(header), shape_of(header)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # in a container, users need no names
        return f"user {os.geteuid()}"


def _refuse_remote_model(stored: StoredModel) -> None:
    if stored.config.remote_host:
        raise Unsupported("ollama cloud is disabled: remote model is unavailable")
