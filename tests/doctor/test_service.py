"""The findings on the units, and the transient unit of the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from specd.doctor.check_in_sandbox import transient_unit
from specd.doctor.finding import Level
from specd.doctor.service import HeldSocket, service, show

RUNS = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "NRestarts": "0",
    "Result": "success",
    "StatusText": "listening",
}
NO_OLLAMA = {"LoadState": "not-found", "ActiveState": "inactive"}


NO_SOCKET = {"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"}
SOCKET = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}


def levels(
    unit: Mapping[str, str],
    ollama: Mapping[str, str] = NO_OLLAMA,
    socket: Mapping[str, str] = NO_SOCKET,
) -> list[Level]:
    return [finding.level for finding in service(unit, ollama, socket)]


@pytest.mark.parametrize(
    "change,expected",
    [
        ({}, [Level.OK]),
        ({"ActiveState": "failed", "Result": "exit-code"}, [Level.PROBLEM]),
        ({"ActiveState": "inactive"}, [Level.PROBLEM]),
        ({"ActiveState": "activating"}, [Level.WARNING]),
        ({"NRestarts": "3"}, [Level.OK, Level.WARNING]),
        ({"UnitFileState": "disabled"}, [Level.OK, Level.WARNING]),
        ({"LoadState": "not-found"}, [Level.ABSENT]),
    ],
)
def test_each_state_of_the_service_has_its_level(
    change: dict[str, str], expected: list[Level]
) -> None:
    assert levels(RUNS | change) == expected


def test_without_systemd_there_is_no_problem() -> None:
    assert levels({}, {}) == [Level.ABSENT]


def test_a_running_ollama_is_a_warning_with_migrate_as_remedy() -> None:
    *_, last = service(RUNS, {"LoadState": "loaded", "ActiveState": "active"}, NO_SOCKET)
    assert last.level is Level.WARNING
    assert "specd migrate" in last.remedy


@pytest.mark.parametrize(
    "ollama,is_told",
    [
        ({"ActiveState": "activating"}, True),
        ({"ActiveState": "inactive", "UnitFileState": "enabled"}, True),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, False),
        (
            {
                "ActiveState": "inactive",
                "UnitFileState": "enabled",
                "DropInPaths": "/etc/systemd/system/ollama.service.d/specd.conf",
            },
            False,
        ),
    ],
)
def test_an_ollama_that_will_start_is_a_warning(ollama: dict[str, str], is_told: bool) -> None:
    here = RUNS | {"DropInPaths": "/etc/systemd/system/specd.service.d/ollama.conf"}
    assert (Level.WARNING in levels(here, ollama)) is is_told
    if ollama["ActiveState"] == "inactive":
        by_socket = levels(here | {"UnitFileState": "disabled"}, ollama, SOCKET)
        assert (Level.WARNING in by_socket) is is_told


@pytest.mark.parametrize(
    "change,of_socket,expected",
    [
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, {}, [Level.OK]),
        ({"ActiveState": "failed"}, {}, [Level.PROBLEM]),
        ({"UnitFileState": "disabled"}, {}, [Level.OK]),
        ({"UnitFileState": "disabled"}, {"UnitFileState": "disabled"}, [Level.OK, Level.WARNING]),
        ({}, {"ActiveState": "failed"}, [Level.OK, Level.PROBLEM]),
        ({}, {"ActiveState": "inactive"}, [Level.OK, Level.WARNING]),
    ],
)
def test_a_service_with_socket_activation(
    change: dict[str, str], of_socket: dict[str, str], expected: list[Level]
) -> None:
    assert levels(RUNS | change, socket=SOCKET | of_socket) == expected


def test_a_service_that_waits_for_its_socket_is_ok() -> None:
    [waits] = service(RUNS | {"ActiveState": "inactive"}, NO_OLLAMA, SOCKET)
    assert "waits behind specd.socket, and starts with the first request" in waits.words


def test_a_socket_that_the_running_service_blocks_is_a_warning() -> None:
    _, told = service(RUNS, NO_OLLAMA, SOCKET | {"ActiveState": "inactive"})
    assert "cannot be started while the service runs" in told.words
    assert told.remedy == "systemctl stop specd specd.socket; systemctl start specd.socket"


def test_a_repeated_property_has_a_line_for_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "systemctl"
    properties = "Listen=[::]:1 (Stream)\\nListen=/run/x (Stream)\\nActiveState=active\\n"
    program.write_text(f"#!/bin/sh\nprintf '{properties}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = {name: value for name, value in show("specd.socket").items() if value}
    assert found == {"Listen": "[::]:1 (Stream)\n/run/x (Stream)", "ActiveState": "active"}


SHIPPED = """\
# /etc/systemd/system/specd.service
[Unit]
Description=specd

[Service]
Type=notify
ExecStart=/opt/specd/bin/specd serve
User=specd

[Install]
WantedBy=multi-user.target

# /etc/systemd/system/specd.service.d/override.conf
[Service]
Environment="OLLAMA_DEBUG=1"
ExecStart=
ExecStart=-/elsewhere/specd serve
"""


def test_the_transient_unit_is_the_service_with_another_command() -> None:
    lines = transient_unit(SHIPPED, Path("/run/out")).splitlines()
    assert lines[0] == "[Service]"
    assert "User=specd" in lines
    assert 'Environment="OLLAMA_DEBUG=1"' in lines
    assert not any("Description" in line or "WantedBy" in line for line in lines)
    # The last command counts; an empty one removes those before it.
    last = [line for line in lines if line.startswith("ExecStart=")][-2:]
    assert last == ["ExecStart=", "ExecStart=/elsewhere/specd doctor --here --json"]
    # Its standard error is not read as findings.
    assert "StandardError=journal" in lines
    assert lines.index("Type=oneshot") > lines.index("Type=notify")


def test_the_transient_unit_passes_the_held_socket() -> None:
    held_socket = HeldSocket(("127.0.0.1:11434", '/run/a "b" 5% $c'), is_served=False)
    [*_, told] = [
        line
        for line in transient_unit(SHIPPED, Path("/run/out"), held_socket).splitlines()
        if line.startswith("ExecStart=")
    ]
    assert told.endswith(
        ' --here --json --socket "127.0.0.1:11434"'
        r' --socket "/run/a \"b\" 5%% $$c" --socket-waits'
    )
    served = transient_unit(SHIPPED, Path("/run/out"), HeldSocket(("127.0.0.1:1",)))
    assert "--socket-waits" not in served


def test_a_service_without_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="has no ExecStart="):
        transient_unit("[Service]\nType=notify\n", Path("/run/out"))
