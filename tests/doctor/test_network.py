"""Who has the port, by asking whoever answers there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from specd.doctor.finding import Finding, Level
from specd.doctor.network import network
from specd.port_holder import listener_on
from specd.settings import HostAddress


def port_finding(port: int) -> Finding:
    return next(iter(network(HostAddress("http", "127.0.0.1", port), n_keys=0)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(body: bytes, server: str) -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            if server:
                self.send_header("Server", server)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


def test_a_free_port_is_in_order() -> None:
    finding = port_finding(free_port())
    assert finding.level is Level.OK
    assert "free" in finding.words


def test_specd_itself_is_in_order() -> None:
    with serving(b"Ollama is running", "specd/1.2.3") as port:
        finding = port_finding(port)
    assert finding.level is Level.OK
    assert "specd 1.2.3 answers" in finding.words


def test_ollama_is_told_from_others_and_can_be_taken_over_from() -> None:
    with serving(b"Ollama is running", "") as port:
        finding = port_finding(port)
    assert finding.level is Level.PROBLEM
    assert f"Ollama itself, {holder_name()} (pid {os.getpid()}" in finding.words
    assert "specd migrate" in finding.remedy


def test_another_web_server_is_called_by_its_own_name() -> None:
    with serving(b"hello", "nginx/1.2") as port:
        finding = port_finding(port)
    assert finding.level is Level.PROBLEM
    assert "taken by nginx/1.2" in finding.words


def test_whoever_speaks_no_http_is_named_by_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        finding = port_finding(port)
        thread.join()
        holder = listener_on(HostAddress("http", "127.0.0.1", port))
        assert holder is not None
        assert (holder.pid, holder.name) == (os.getpid(), holder_name())
    assert finding.level is Level.PROBLEM
    assert f"(pid {os.getpid()}" in finding.words


def test_a_port_that_nobody_has_has_no_holder() -> None:
    assert listener_on(HostAddress("http", "127.0.0.1", free_port())) is None


@pytest.mark.parametrize(
    "host,n_keys,is_open",
    [
        ("", 0, True),
        ("0.0.0.0", 0, True),
        ("::", 0, True),
        ("127.0.0.2", 0, False),
        ("", 1, False),
        ("127.0.0.1", 0, False),
        ("localhost", 0, False),
        ("host.invalid", 0, True),
    ],
)
def test_an_address_that_others_reach_without_a_key_is_a_warning(
    host: str, n_keys: int, is_open: bool
) -> None:
    address = HostAddress("http", host, free_port())
    levels = [finding.level for finding in network(address, n_keys=n_keys)]
    assert (Level.WARNING in levels) is is_open


def holder_name() -> str:
    return str(psutil.Process().name())
