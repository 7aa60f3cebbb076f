"""Manifests at a registry: download with a check that it is a model, and upload."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import hdrs

from specd.errors import RegistryError, RegistryUnreachable, StoreError
from specd.registry.remote import RegistryRefused, Remote, is_retryable
from specd.store.manifest import Layer, Manifest, parse_manifest

MEDIA_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
_MODEL_LAYERS: Final = "application/vnd.ollama.image."


async def fetch_manifest(remote: Remote, tag: str) -> tuple[bytes, tuple[Layer, ...]]:
    """Return the manifest's exact bytes, and what to download: the layers, then the config.

    Raises RegistryError in Ollama's words.
    """
    try:
        url = remote.url / "manifests" / tag
        answer = await remote.ask(hdrs.METH_GET, url, headers={hdrs.ACCEPT: MEDIA_TYPE})
        return answer.body, _layers(answer.body)
    except RegistryError as error:
        message = f"pull model manifest: {error}"
        is_temporary = isinstance(error, RegistryRefused) and is_retryable(error.status)
        if is_temporary or isinstance(error, RegistryUnreachable):
            raise RegistryUnreachable(message) from error
        raise RegistryError(message) from error


async def put_manifest(remote: Remote, tag: str, data: bytes) -> None:
    """Upload a manifest.  Raises RegistryError."""
    url = remote.url / "manifests" / tag
    await remote.ask(hdrs.METH_PUT, url, headers={hdrs.CONTENT_TYPE: MEDIA_TYPE}, body=data)


def _layers(data: bytes) -> tuple[Layer, ...]:
    """Return the layers of a manifest.  Raises RegistryError if it is not a model's."""
    try:
        manifest = parse_manifest(data, "the manifest")
    except StoreError as error:
        raise RegistryError(_explain_rejection(data)) from error
    if not any(layer.media_type.startswith(_MODEL_LAYERS) for layer in manifest.layers):
        raise RegistryError("the registry has an image of another kind under this name, no model")
    return layers_of(manifest)


def layers_of(manifest: Manifest) -> tuple[Layer, ...]:
    """Return the blobs in the order of transfer: the layers, then the config if there is one."""
    return (*manifest.layers, *([manifest.config] if manifest.config.digest else []))


def _explain_rejection(data: bytes) -> str:
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "the registry's answer is not a manifest"
    if "manifests" in fields:
        return "the registry has a list of images under this name, not a model"
    return "the registry's manifest is not the manifest of a model"
