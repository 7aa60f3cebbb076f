"""Finds the model of a request and checks its capabilities, for every dialect.

The order of the checks is Ollama's, because clients see which one fails first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from specd import core
from specd.api.go_format import go_quote
from specd.api.interfaces import Library
from specd.errors import InvalidRequest, ModelNotFound, SpecdError, Unsupported
from specd.store import ModelInfo

T = TypeVar("T")


class CloudDisabled(SpecdError):
    """A model or service of ollama.com, which specd never contacts."""


async def find_model(library: Library, name: str) -> core.ModelRef:
    """Return the model.  Raises ModelNotFound with the name as sent, also for an empty one."""
    if not name:
        raise ModelNotFound(name)
    try:
        return await _read(lambda: library.resolve(name), "remote model is unavailable")
    except ModelNotFound as error:
        raise ModelNotFound(name) from error


async def find_info(library: Library, name: str, *, verbose: bool = False) -> ModelInfo:
    """Return the model's details.  Raises ModelNotFound with the short name and the tag."""
    return await _read(
        lambda: library.show(name, verbose=verbose), "remote model details are unavailable"
    )


async def _read(read: Callable[[], T], elsewhere: str) -> T:
    try:
        return await asyncio.to_thread(read)
    except Unsupported as error:
        raise CloudDisabled(f"ollama cloud is disabled: {elsewhere}") from error


def require_capability(ref: core.ModelRef, capability: str) -> None:
    """Refuse a model without a capability that a field needs: tools, insert, audio."""
    if capability not in ref.capabilities:
        raise Unsupported(f"{ref.full_name} does not support {capability}")


def require_completion(ref: core.ModelRef, sent_name: str, verb: str) -> None:
    """Refuse a model that cannot generate text.  verb: "generate" or "chat", for the error."""
    if "completion" not in ref.capabilities:
        raise Unsupported(f"{go_quote(sent_name)} does not support {verb}")


def require_thinking(ref: core.ModelRef, sent_name: str, think: bool | str | None) -> None:
    if think and "thinking" not in ref.capabilities:
        raise Unsupported(f"{go_quote(sent_name)} does not support thinking")


def require_images(ref: core.ModelRef) -> None:
    """Refuse a model that reads neither images nor sounds, before it is loaded."""
    if {"vision", "audio"}.isdisjoint(ref.capabilities):
        raise Unsupported(
            "Multimodal data provided, but model does not support multimodal requests."
        )
    if not ref.reads_images:
        raise Unsupported(
            f"{ref.full_name} has no projector: llama.cpp cannot show it images without one"
        )


def require_sounds(ref: core.ModelRef) -> None:
    """Refuse a model that does not read sounds, before it is loaded."""
    require_images(ref)
    require_capability(ref, "audio")


def check_top_logprobs(n: int) -> None:
    if not 0 <= n <= 20:
        raise InvalidRequest("top_logprobs must be between 0 and 20")
