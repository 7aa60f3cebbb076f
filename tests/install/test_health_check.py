"""The check that the started daemon answers and lists its models."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specd.errors import InstallError
from specd.install import health_check
from specd.install.health_check import check_health
from specd.install.host_system import HostSystem
from specd.install.steps import Undo
from tests.install.fake_host_system import FakeHostSystem, migration


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Server:
    """Answers every path with a status and a body."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        answers = self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    served.answers["/api/version"] = (200, '{"version": "1"}')
    thread = threading.Thread(target=served.http.serve_forever)
    thread.start()
    yield served
    served.http.shutdown()
    thread.join()
    served.http.server_close()


def test_with_an_empty_store_an_answer_is_enough(server: Server) -> None:
    check_health(server.url).do(HostSystem(), Undo())


def test_the_count_of_one_model_is_singular(server: Server) -> None:
    server.answers["/api/tags"] = (200, '{"models": []}')
    step = check_health(server.url, 1)
    assert "lists models (1 model in the store)" in step.words
    with pytest.raises(InstallError, match="not the 1 model in"):
        step.do(HostSystem(), Undo())


def test_a_migration_prints_one_model_in_the_singular(
    with_ollama: FakeHostSystem, tmp_path: Path
) -> None:
    assert "; 1 model in /var/lib/ollama" in migration(with_ollama, tmp_path).outcome[0]


def test_models_in_the_store_must_be_listed(server: Server) -> None:
    server.answers["/api/tags"] = (200, '{"models": []}')
    with pytest.raises(InstallError, match="none of the 2 models"):
        check_health(server.url, 2).do(HostSystem(), Undo())
    server.answers["/api/tags"] = (200, '{"models": [{}]}')
    check_health(server.url, 2).do(HostSystem(), Undo())


def test_a_daemon_that_requires_a_key_is_healthy(server: Server) -> None:
    server.answers["/api/version"] = (401, "")
    check_health(server.url, 2).do(HostSystem(), Undo())


def test_another_server_is_not_specd(server: Server) -> None:
    server.answers["/api/version"] = (404, "")
    with pytest.raises(InstallError, match="answers 404"):
        check_health(server.url).do(HostSystem(), Undo())


def test_a_daemon_that_does_not_answer_is_an_error(
    listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_check, "_TIMEOUT_S", 0.0)
    monkeypatch.setattr(health_check, "_ONE_TRY_S", 0.05)
    with pytest.raises(InstallError, match="no daemon answers on"):
        check_health(f"http://127.0.0.1:{listener}").do(HostSystem(), Undo())
