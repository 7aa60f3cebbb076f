"""Fixtures that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

pytest_plugins = ["tests.fast"]

# The time of an example depends on the machine more than on the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the behaviours that each test checks to the report (tools/conformance.py --verify)."""
    for item in items:
        for mark in item.iter_markers("contract"):
            item.user_properties += [("contract", key) for key in mark.args]


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the settings and the pairs file of the user who runs the tests."""
    for variable in list(os.environ):
        if variable.startswith(("OLLAMA_", "SPECD_")):
            del os.environ[variable]
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
