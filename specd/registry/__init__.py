"""Models from and to a registry: pull, push, authentication, resumable transfers."""

from __future__ import annotations

from specd.registry.authentication import default_folder
from specd.registry.registry import Registry
from specd.registry.transfer_context import Traffic

__all__ = ["Registry", "Traffic", "default_folder"]
