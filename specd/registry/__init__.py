"""Models from and to a registry: pull, push, authentication, resumable transfers."""

from __future__ import annotations

from specd.registry.identity import default_folder
from specd.registry.means import Traffic
from specd.registry.registry import Registry

__all__ = ["Registry", "Traffic", "default_folder"]
