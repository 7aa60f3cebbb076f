"""The pair that ships inside the package, presented as the model `specd-demo`."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from specd.store import blobs, name
from specd.store.manifest import Config
from specd.store.stored_model import LayerFile, StoredModel

NAME: Final = name.parse("specd-demo")


@functools.cache
def stored_demo() -> StoredModel | None:
    """Return the demo pair; None if the package has no weights or lies inside an archive."""
    return demo_in(resources.files("specd") / "demo")


def demo_in(folder: Traversable) -> StoredModel | None:
    """Return the pair in `folder`; None unless both files can be opened by path."""
    target, drafter = folder / "target.gguf", folder / "drafter.gguf"
    if not (isinstance(target, Path) and isinstance(drafter, Path)):
        return None
    if not (target.is_file() and drafter.is_file()):
        return None
    contents = target.read_bytes() + drafter.read_bytes()
    return StoredModel(
        name=NAME,
        digest=hashlib.sha256(contents).hexdigest(),
        size_bytes=len(contents),
        modified_at=blobs.modified_at(target),
        config=Config(model_format="gguf", model_family="llama", model_families=["llama"]),
        layers=(LayerFile("model", target), LayerFile("draft", drafter)),
    )
