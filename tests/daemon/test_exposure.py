"""The warning at the start if others can use the daemon without a key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from specd.daemon.sockets import exposure
from specd.settings import Settings
from tests.daemon_process import FAKE_ENGINE, running

KEYS = (SecretStr("sk-0123456789abcdef"),)


@pytest.mark.parametrize(
    "addresses, said",
    [
        ([("127.0.0.1", 11434)], ""),
        ([("127.0.0.53", 1)], ""),
        ([("::1", 11434, 0, 0)], ""),
        (["/run/specd.sock"], ""),
        ([("0.0.0.0", 11434)], "everyone who can reach 0.0.0.0:11434 can run, pull, push"),
        ([("::", 80, 0, 0)], "everyone who can reach [::]:80 can"),
        ([("127.0.0.1", 1), ("192.168.1.2", 2)], "everyone who can reach 192.168.1.2:2 can"),
        ([("10.0.0.1", 1), ("fd00::1", 2, 0, 0)], "reach 10.0.0.1:1 or [fd00::1]:2 can"),
    ],
)
def test_the_warning_names_the_exposed_addresses(addresses: list[object], said: str) -> None:
    sentence = exposure(addresses, Settings())
    assert sentence.startswith(said) if not said else said in sentence
    assert bool(sentence) is bool(said)
    if said:
        assert "Set SPECD_API_KEYS" in sentence
    assert exposure(addresses, Settings(api_keys=KEYS)) == ""


def test_a_star_in_the_origins_exposes_the_daemon_to_every_page() -> None:
    here = [("127.0.0.1", 11434)]
    assert "every web page" in exposure(here, Settings(origins=("https://a", "*")))
    assert exposure(here, Settings(origins=("https://*.example.org",))) == ""
    assert exposure(here, Settings(origins=("*",), api_keys=KEYS)) == ""


async def test_an_exposed_daemon_logs_a_warning(tmp_path: Path) -> None:
    for keys in ("", KEYS[0].get_secret_value()):
        with (tmp_path / "log").open("wb") as log:
            variables = {"OLLAMA_HOST": "0.0.0.0:0", "SPECD_API_KEYS": keys}
            async with running(
                tmp_path, engine=FAKE_ENGINE, log=log.fileno(), **variables
            ) as opened:
                port = opened.url.rpartition(":")[2]
        said = (tmp_path / "log").read_text()
        assert (f"everyone who can reach 0.0.0.0:{port} can run" in said) is not bool(keys)
        assert "sk-0123" not in said
