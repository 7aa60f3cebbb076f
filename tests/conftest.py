"""Fixtures that every room's tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside() -> None:
    """The tests see no setting of whoever runs them."""
    for variable in list(os.environ):
        if variable.startswith(("OLLAMA_", "SPECD_")):
            del os.environ[variable]
