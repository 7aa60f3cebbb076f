"""Fixtures that every room's tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fast"]

# How long an example takes says something of the machine, not of the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The report says which behaviours each test holds (scripts/conformance.py --verify)."""
    for item in items:
        for mark in item.iter_markers("contract"):
            item.user_properties += [("contract", key) for key in mark.args]


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests see no setting of whoever runs them, and no pairs file of theirs."""
    for variable in list(os.environ):
        if variable.startswith(("OLLAMA_", "SPECD_")):
            del os.environ[variable]
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
