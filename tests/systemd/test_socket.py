"""specd.socket: systemd holds the port, so clients wait while the daemon is not running."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.systemd import load as clients_inside
from tests.systemd.container import SystemdContainer, documented

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

VERSION = "/api/version"
LOAD = Path(__file__).with_name("load.py")
N_CLIENTS = clients_inside.ASKS + clients_inside.PROMPTS


class Load:
    """Clients inside the container that send requests without a pause (load.py)."""

    def __init__(
        self, container: SystemdContainer, process: subprocess.Popen[str], ends: Path
    ) -> None:
        self._box = container
        self._process = process
        self._ends = ends

    def counts(self) -> Counter[str]:
        """Count the output lines so far: `prompt done`, `ask refused`, ..."""
        return Counter(self._ends.read_text(encoding="utf-8").splitlines())

    def until_done(self, n_more: int) -> None:
        """Wait until that many further prompts are answered."""
        before = self.counts()["prompt done"]
        self._box.wait_until(
            lambda: self.counts()["prompt done"] >= before + n_more, what="prompts are answered"
        )

    def stop(self) -> Counter[str]:
        """Stop the clients; return the counts of all results."""
        self._process.communicate()
        return self.counts()


@contextmanager
def load(container: SystemdContainer, tmp_path: Path) -> Iterator[Load]:
    container.write("/opt/load.py", LOAD.read_text(encoding="utf-8"))
    ends = tmp_path / "ends"
    with (
        ends.open("w") as out,
        container.popen("/opt/specd/bin/python", "/opt/load.py", stdout=out.fileno()) as process,
    ):
        try:
            yield Load(container, process, ends)
        finally:
            process.kill()


def test_the_first_client_starts_the_daemon(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd.socket")
    assert container.show("specd", "ActiveState") == "inactive"
    assert json.loads(container.curl(VERSION))["version"]
    assert container.show("specd", "ActiveState") == "active"
    assert container.show("specd", "StatusText").startswith("listening on http://127.0.0.1:11434")


def test_the_socket_may_listen_on_ipv6_and_on_a_unix_path(container: SystemdContainer) -> None:
    """`OLLAMA_HOST` differs from the socket, and the log says so."""
    container.drop_in(
        "specd.socket",
        "[Socket]\nListenStream=\nListenStream=[::1]:12345\nListenStream=/run/specd.sock\n",
    )
    container.drop_in("specd", '[Service]\nEnvironment="OLLAMA_HOST=127.0.0.1:11111"\n')
    container("systemctl", "start", "specd.socket")
    assert json.loads(container.curl(f"http://[::1]:12345{VERSION}"))["version"]
    by_path = container.curl(f"http://localhost{VERSION}", "--unix-socket", "/run/specd.sock")
    assert json.loads(by_path)["version"]
    assert "OLLAMA_HOST=127.0.0.1:11111 has no effect" in container.log()
    places = container.show("specd", "StatusText").partition(";")[0]
    assert set(places.removeprefix("listening on ").split(" and ")) == {
        "http://[::1]:12345",
        "unix:/run/specd.sock",
    }


def test_the_documented_commands_move_the_socket(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd.socket", "specd")
    container.drop_in("specd.socket", documented("ListenStream=").replace(":11434", ":12345"))
    # Users would try this first; the page explains the result.
    assert "Job failed" in container.result("systemctl", "restart", "specd.socket").stderr
    assert json.loads(container.curl(VERSION))["version"]
    for command in documented("systemctl start specd.socket").splitlines():
        container(*command.split())
    assert json.loads(container.curl(f"http://127.0.0.1:12345{VERSION}"))["version"]
    assert container.result("curl", "-sS", f"http://127.0.0.1:11434{VERSION}").returncode != 0


def test_engines_do_not_inherit_sockets_or_variables_of_systemd(
    container: SystemdContainer,
) -> None:
    container("systemctl", "start", "specd.socket", "specd")
    body = json.dumps({"model": "specd-demo", "prompt": "x", "options": {"num_predict": 1}})
    container.curl("/api/generate", "-d", body)
    children = {pid: what for pid, what in container.processes().items() if pid != container.pid()}
    assert any("specd.engine" in command for command in children.values())
    inode = container("sh", "-c", "ss -Hltne 'sport = :11434' | grep -o 'ino:[0-9]*'").strip()
    for pid in children:
        environment = container("cat", f"/proc/{pid}/environ").split("\0")
        assert not [
            line
            for line in environment
            if line.startswith(("LISTEN_", "NOTIFY_SOCKET", "WATCHDOG_"))
        ]
        files = container("ls", "-l", f"/proc/{pid}/fd")
        assert f"socket:[{inode.removeprefix('ino:')}]" not in files
    own = container("ls", "-l", f"/proc/{container.pid()}/fd")
    assert f"socket:[{inode.removeprefix('ino:')}]" in own


def test_a_restart_refuses_no_connection(container: SystemdContainer, tmp_path: Path) -> None:
    container("systemctl", "start", "specd.socket", "specd")
    with load(container, tmp_path) as clients:
        for _ in range(3):
            clients.until_done(2)
            container("systemctl", "restart", "specd")
        clients.until_done(2)
        ends = clients.stop()
    # Every accepted connection got an answer too: a prompt gets an `error` while the daemon stops.
    assert set(ends) <= {"prompt done", "prompt error", "ask done"}
    assert ends["ask done"] > 100


def test_a_crash_refuses_no_connection(container: SystemdContainer, tmp_path: Path) -> None:
    """Running answers are lost; new clients wait for the next daemon."""
    container.drop_in("specd", "[Service]\nRestartSec=0\n")
    container("systemctl", "start", "specd.socket", "specd")
    with load(container, tmp_path) as clients:
        clients.until_done(2)
        container("kill", "-9", str(container.pid()))
        clients.until_done(2)
        ends = clients.stop()
    assert not any("refused" in end or "twice" in end for end in ends)
    # At most one per client: no more requests were in progress.
    lost = sum(n for end, n in ends.items() if "cut" in end or "unheard" in end)
    assert 1 <= lost <= N_CLIENTS


def test_without_the_socket_every_answer_still_ends_once(
    container: SystemdContainer, tmp_path: Path
) -> None:
    container("systemctl", "start", "specd")
    with load(container, tmp_path) as clients:
        clients.until_done(2)
        container("systemctl", "restart", "specd")
        clients.until_done(2)
        ends = clients.stop()
    # The kernel resets connections that are not accepted yet, and refuses new ones.
    assert not any("cut" in end or "twice" in end for end in ends)
