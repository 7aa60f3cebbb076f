"""Whom the daemon is open to, said when it starts."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from specd.daemon.exposure import exposure
from specd.settings import Settings

KEYS = (SecretStr("sk-0123456789abcdef"),)


@pytest.mark.parametrize(
    "addresses, said",
    [
        ([("127.0.0.1", 11434)], ""),
        ([("127.0.0.53", 1)], ""),
        ([("::1", 11434, 0, 0)], ""),
        (["/run/specd.sock"], ""),
        ([("0.0.0.0", 11434)], "everyone who reaches 0.0.0.0:11434 may run, pull, push"),
        ([("::", 80, 0, 0)], "everyone who reaches [::]:80 may"),
        ([("127.0.0.1", 1), ("192.168.1.2", 2)], "everyone who reaches 192.168.1.2:2 may"),
        ([("10.0.0.1", 1), ("fd00::1", 2, 0, 0)], "reaches 10.0.0.1:1 or [fd00::1]:2 may"),
    ],
)
def test_what_is_open_to_others_is_named(addresses: list[object], said: str) -> None:
    sentence = exposure(addresses, Settings())
    assert sentence.startswith(said) if not said else said in sentence
    assert bool(sentence) is bool(said)
    if said:
        assert "Set SPECD_API_KEYS" in sentence
    assert exposure(addresses, Settings(api_keys=KEYS)) == ""


def test_a_star_opens_it_to_every_page() -> None:
    here = [("127.0.0.1", 11434)]
    assert "every web page" in exposure(here, Settings(origins=("https://a", "*")))
    assert exposure(here, Settings(origins=("https://*.example.org",))) == ""
    assert exposure(here, Settings(origins=("*",), api_keys=KEYS)) == ""
