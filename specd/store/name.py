"""Model names, parsed once.

    name      = [[[scheme "://"] host "/"] namespace "/"] model [":" tag] [":local" | ":cloud"]
    host      = 1*350( letter / digit / "_" / "-" / "." / ":" )
    namespace = 1*80( letter / digit / "_" / "-" )
    model,tag = 1*80( letter / digit / "_" / "-" / "." )

Each part starts with a letter, a digit or "_", so a name cannot leave its directory.  Defaults:
registry.ollama.ai, library, latest, https.  A tag `x-cloud` means the tag `x` in Ollama's cloud.
Names keep the case of their creation, and lookups ignore case.  `@digest` is not part of a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Final

from specd.errors import InvalidName

DEFAULT_HOST: Final = "registry.ollama.ai"
DEFAULT_NAMESPACE: Final = "library"
DEFAULT_TAG: Final = "latest"

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


class ModelSource(Enum):
    """Where a name places the model: `:local`, `:cloud` or neither."""

    UNSPECIFIED = auto()
    LOCAL = auto()
    CLOUD = auto()


_SOURCES: Final = {"local": ModelSource.LOCAL, "cloud": ModelSource.CLOUD}


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A complete model name; every part is valid and not empty."""

    host: str = DEFAULT_HOST
    namespace: str = DEFAULT_NAMESPACE
    model: str
    tag: str = DEFAULT_TAG
    scheme: str = "https"
    source: ModelSource = ModelSource.UNSPECIFIED

    @property
    def short(self) -> str:
        """The name that users see: without default host and namespace, always with the tag."""
        shown = f"{self.model}:{self.tag}"
        if self.host.lower() != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{shown}"
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{shown}"
        return shown

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def key(self) -> str:
        """Key for comparison: names that differ only in case have the same key."""
        return self.full.lower()

    @property
    def stored(self) -> Name:
        """The name of the manifest file, in which a cloud model has `-cloud` in its tag."""
        if self.source is not ModelSource.CLOUD:
            return self
        tag = "cloud" if self.tag == DEFAULT_TAG else f"{self.tag}-cloud"
        return replace(self, tag=tag, source=ModelSource.UNSPECIFIED)

    def path(self, manifests: Path) -> Path:
        """Return the manifest's path for exactly this spelling."""
        return manifests / self.host / self.namespace / self.model / self.tag


def parse(text: str) -> Name:
    """Parse a name by the grammar above.  Raises InvalidName with Ollama's texts."""
    rest, source = _split_source(text)
    if (
        source is not ModelSource.UNSPECIFIED
        and _split_source(rest)[1] is not ModelSource.UNSPECIFIED
    ):
        raise InvalidName(f'use either :local or :cloud, not both: "{text}"')
    tag = DEFAULT_TAG
    if rest.rfind(":") > rest.rfind("/"):
        rest, _, tag = rest.rpartition(":")
    rest, slash, model = rest.rpartition("/")
    namespace, host, scheme = DEFAULT_NAMESPACE, DEFAULT_HOST, "https"
    if slash:
        rest, slash, namespace = rest.rpartition("/")
    if slash:
        before, found, after = rest.partition("://")
        scheme, host = (before, after) if found else ("https", rest)
    return _validate(
        Name(host=host, namespace=namespace, model=model, tag=tag, scheme=scheme, source=source)
    )


def from_parts(parts: tuple[str, ...]) -> Name | None:
    """Return the name for a manifest's path (host, namespace, model, tag); None if invalid."""
    if len(parts) != 4:
        return None
    host, namespace, model, tag = parts
    try:
        return _validate(Name(host=host, namespace=namespace, model=model, tag=tag))
    except InvalidName:
        return None


def _validate(name: Name) -> Name:
    valid = (
        _HOST.fullmatch(name.host)
        and _NAMESPACE.fullmatch(name.namespace)
        and _PART.fullmatch(name.model)
        and _PART.fullmatch(name.tag)
    )
    if not valid:
        raise InvalidName("invalid model name")
    return name


def _split_source(text: str) -> tuple[str, ModelSource]:
    """Split `:local`, `:cloud` or a tag's `-cloud` from the end of the text."""
    before, colon, last = text.rpartition(":")
    word = last.strip().lower()
    if not colon or "/" in word:
        return text, ModelSource.UNSPECIFIED
    if word in _SOURCES:
        return before, _SOURCES[word]
    if word.endswith("-cloud"):
        return f"{before}:{last.strip()[: -len('-cloud')]}", ModelSource.CLOUD
    return text, ModelSource.UNSPECIFIED
