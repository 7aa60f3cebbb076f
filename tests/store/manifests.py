"""Small manifests, and a check that a store is consistent."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

CONFIG = b"{}"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest(*layers: bytes, config: bytes = CONFIG) -> bytes:
    def entry(media: str, data: bytes) -> dict[str, object]:
        return {"mediaType": media, "digest": digest(data), "size": len(data)}

    model = "application/vnd.ollama.image.model"
    value = {
        "schemaVersion": 2,
        "config": entry("application/vnd.docker.container.image.v1+json", config),
        "layers": [entry(model, layer) for layer in layers],
    }
    return json.dumps(value).encode()


def check_whole(root: Path) -> dict[str, bytes]:
    """Return the manifests by path; assert that all their blobs exist and none is damaged."""
    found = {}
    for path in (root / "manifests").rglob("*"):
        if path.is_file():
            found[str(path.relative_to(root / "manifests"))] = path.read_bytes()
    for name, data in found.items():
        value = json.loads(data)
        for layer in (value["config"], *value["layers"]):
            blob = root / "blobs" / layer["digest"].replace(":", "-")
            assert blob.is_file(), f"{name} misses {layer}"
    for blob in (root / "blobs").iterdir():
        if re.fullmatch(r"sha256-[0-9a-f]{64}", blob.name):
            assert digest(blob.read_bytes()) == blob.name.replace("-", ":")
        else:
            assert re.fullmatch(r"sha256-[0-9a-f]{64}-partial(-\d+)?", blob.name)
    return found
