"""A model's manifest as a registry has it: fetched, and told from what is no model."""

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
    """The registry's own bytes, and what to download for them: the layers, then the config.

    Raises RegistryError in Ollama's words (contract 1.3).
    """
    try:
        url = remote.url / "manifests" / tag
        answer = await remote.ask(hdrs.METH_GET, url, headers={hdrs.ACCEPT: MEDIA_TYPE})
        return answer.body, _layers(answer.body)
    except RegistryError as error:
        message = f"pull model manifest: {error}"
        passes = isinstance(error, RegistryRefused) and is_retryable(error.status)
        if passes or isinstance(error, RegistryUnreachable):
            raise RegistryUnreachable(message) from error
        raise RegistryError(message) from error


async def put_manifest(remote: Remote, tag: str, data: bytes) -> None:
    url = remote.url / "manifests" / tag
    await remote.ask(hdrs.METH_PUT, url, headers={hdrs.CONTENT_TYPE: MEDIA_TYPE}, body=data)


def _layers(data: bytes) -> tuple[Layer, ...]:
    """Raises RegistryError for what no model can be made of, before gigabytes of it are here."""
    try:
        manifest = parse_manifest(data, "the manifest")
    except StoreError as error:
        raise RegistryError(_explain_rejection(data)) from error
    if not any(layer.media_type.startswith(_MODEL_LAYERS) for layer in manifest.layers):
        raise RegistryError("the registry holds no model under this name, but another image")
    return layers_of(manifest)


def layers_of(manifest: Manifest) -> tuple[Layer, ...]:
    """In the order in which they travel: the config is last, and may be missing."""
    return (*manifest.layers, *([manifest.config] if manifest.config.digest else []))


def _explain_rejection(data: bytes) -> str:
    try:
        said = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "the registry's answer is no manifest"
    if "manifests" in said:
        return "the registry holds a list of images under this name, not a model"
    return "the registry's manifest is not of a kind that holds a model"
