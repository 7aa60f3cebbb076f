"""Fixtures that every room's tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes says something of the machine, not of the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside() -> None:
    """The tests see no setting of whoever runs them."""
    for variable in list(os.environ):
        if variable.startswith(("OLLAMA_", "SPECD_")):
            del os.environ[variable]
