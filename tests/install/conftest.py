"""Fixtures: a machine with and without Ollama, and a daemon that always answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.install import health_check, layout
from tests.gguf_files import OllamaStore
from tests.install.fake_host_system import FakeHostSystem


@pytest.fixture
def machine(tmp_path: Path) -> FakeHostSystem:
    return FakeHostSystem(tmp_path / "root")


_UNIT = """\
[Unit]
Description=Ollama

[Service]
# User=root
User=root
Environment=LOST=1
Environment=
Environment=HOME=/var/lib/ollama OLLAMA_HOST=127.0.0.1:0 \\
  'OLLAMA_ORIGINS=a b'
EnvironmentFile=/etc/default/nothing

[Install]
WantedBy=default.target
"""
_DROP_IN = """\
[Service]
User=nobody
UMask=0022
DynamicUser=false
Environment="OLLAMA_VULKAN=1" PATH=/bin SECRET=x
EnvironmentFile=
EnvironmentFile=-/etc/default/ollama
"""


@pytest.fixture
def with_ollama(machine: FakeHostSystem) -> FakeHostSystem:
    """ollama.service runs as nobody, with a drop-in, a file of settings and one model."""
    machine.put(f"{layout.UNITS}/{layout.OLLAMA}", _UNIT)
    machine.put(f"{layout.UNITS}/{layout.OLLAMA}.d/override.conf", _DROP_IN)
    machine.put("/etc/default/ollama", "OLLAMA_KEEP_ALIVE=7m\n")
    machine.put("/var/lib/ollama/.ollama/id_ed25519", "key")
    OllamaStore(machine.at("/var/lib/ollama/.ollama/models")).add("tiny", weights=None)
    machine.properties[layout.OLLAMA] = {
        "User": "nobody",
        "UMask": "0022",
        "DynamicUser": "no",
        "Environment": 'HOME=/var/lib/ollama OLLAMA_HOST=127.0.0.1:0 "OLLAMA_ORIGINS=a b"'
        " OLLAMA_VULKAN=1 PATH=/bin SECRET=x",
        "EnvironmentFiles": "/etc/default/ollama (ignore_errors=yes)",
    }
    machine.active.add(layout.OLLAMA)
    machine.enabled.add(layout.OLLAMA)
    return machine


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check, "_ask", lambda url: {"models": [{}]})
