"""Check that commands and the settings read the same address and key."""

from __future__ import annotations

import pytest

from specd.daemon_address import DaemonAddress, daemon_address
from specd.errors import BadSetting
from specd.settings import Settings


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OLLAMA_HOST": "", "SPECD_API_KEYS": "  "},
        {"OLLAMA_HOST": " '0.0.0.0:1' "},
        {"OLLAMA_HOST": "https://models.example/below/", "SPECD_API_KEYS": "k" * 16},
        {"OLLAMA_HOST": "[::]:99999", "SPECD_API_KEYS": f'"{"k" * 16} , {"l" * 20}"'},
    ],
)
def test_a_command_and_the_settings_read_the_same(variables: dict[str, str]) -> None:
    settings = Settings.of(variables)
    key = next((key.get_secret_value() for key in settings.api_keys), "")
    assert daemon_address(variables) == DaemonAddress(settings.host.url, key)


def test_invalid_keys_are_refused_with_the_same_message() -> None:
    variables = {"SPECD_API_KEYS": "short"}
    with pytest.raises(BadSetting) as by_command:
        daemon_address(variables)
    with pytest.raises(BadSetting) as by_settings:
        Settings.of(variables)
    assert str(by_command.value) == str(by_settings.value)
    assert "short" not in str(by_command.value)
