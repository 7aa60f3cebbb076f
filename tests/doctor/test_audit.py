"""The audit of real processes and their sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specd.doctor.audit import ProcessAudit, ProcessHidden
from specd.settings import HostAddress
from tests.cli.specd_command import specd
from tests.daemon_process import FAKE_ENGINE, running
from tests.gguf_files import OllamaStore, write_llama

#: Listens, and connects to where argv says; a child of it holds a file open for writing.
CALLER = """
import socket, subprocess, sys
server = socket.create_server(("127.0.0.1", 0))
call = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
child = subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
child.kill()
"""
WRITER = "import sys, time; f = open(sys.argv[1], 'w'); print(flush=True); time.sleep(60)"


@contextmanager
def calling(port: int, written: Path) -> Iterator[int]:
    """Yield the port of a process that listens and has connected to `port`."""
    command = [sys.executable, "-c", CALLER, str(port), str(written), WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


def test_outbound_inbound_and_open_files_are_told_apart(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
        calling(elsewhere.getsockname()[1], tmp_path / "written") as port,
        socket.create_connection(("127.0.0.1", port)),
    ):
        process_audit = ProcessAudit.of(HostAddress("http", "127.0.0.1", port))
        process_audit.sample()
        process_audit.sample()
        [out] = process_audit.outbound()
        assert (out.role, out.remote) == ("daemon", f"127.0.0.1:{elsewhere.getsockname()[1]}")
        assert {c.local for c in process_audit.connections if not c.remote} == {f"127.0.0.1:{port}"}
        assert tmp_path / "written" in process_audit.written
        assert [member.role for member in process_audit.members()] == ["daemon", "other process"]
        assert all(member.peak_bytes > 2**20 for member in process_audit.members())
        assert process_audit.n_samples == 2


def test_a_port_without_a_listener_is_an_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(ProcessHidden, match="cannot find the process that listens"):
            ProcessAudit.of(HostAddress("http", "127.0.0.1", probe.getsockname()[1]))


def test_a_daemon_that_has_ended_is_an_error() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    with pytest.raises(ProcessHidden, match="cannot inspect process"):
        ProcessAudit(done.pid).sample()


@pytest.mark.skipif(os.name != "posix", reason="reads the kernel's tables")
async def test_a_real_daemon_opens_no_connection_while_it_answers(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        told = json.loads(await specd(daemon, "audit", "m", "--json", folder=tmp_path))
        assert told["asked"] == "m"
        assert told["outbound"] == []
        assert told["telemetry"] == []
        assert [model["name"] for model in told["models"]] == ["m:latest"]
        assert "daemon" in {process["role"] for process in told["processes"]}
        words = (await specd(daemon, "audit", folder=tmp_path)).decode()
        assert "Connections to other machines\n  none" in words
