"""The findings on the port and on who can connect."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from specd.doctor.finding import Finding, Level
from specd.doctor.network import network
from specd.doctor.service import HeldSocket, parse_held_socket
from specd.port_owner import find_listener
from specd.settings import HostAddress, Settings

KEY = "0123456789abcdef"


def network_findings(
    host: str = "", held_socket: HeldSocket | None = None, **variables: str
) -> list[Finding]:
    """host: OLLAMA_HOST, "" where it is not set.  variables: other settings."""
    names = variables | ({"host": host} if host else {})
    return list(network(Settings.model_validate(names), held_socket))


def port_finding(port: int) -> Finding:
    return network_findings(f"127.0.0.1:{port}")[0]


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


def test_a_free_port_is_no_problem() -> None:
    finding = port_finding(free_port())
    assert finding.level is Level.ABSENT
    assert "free" in finding.words


def test_specd_on_the_port_is_ok() -> None:
    with serving(b"Ollama is running", "specd/1.2.3") as port:
        finding = port_finding(port)
    assert finding.level is Level.OK
    assert "specd 1.2.3 answers" in finding.words


def test_ollama_on_the_port_is_recognised_and_can_be_replaced() -> None:
    with serving(b"Ollama is running", "") as port:
        finding = port_finding(port)
    assert finding.level is Level.PROBLEM
    assert f"Ollama itself, {holder_name()} (pid {os.getpid()}" in finding.words
    assert "specd migrate" in finding.remedy


def test_another_web_server_is_named_by_its_header() -> None:
    with serving(b"hello", "nginx/1.2") as port:
        finding = port_finding(port)
    assert finding.level is Level.PROBLEM
    assert "taken by nginx/1.2" in finding.words


def test_a_server_without_http_is_named_by_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        finding = port_finding(port)
        thread.join()
        holder = find_listener(HostAddress("http", "127.0.0.1", port))
        assert holder is not None
        assert (holder.pid, holder.name) == (os.getpid(), holder_name())
    assert finding.level is Level.PROBLEM
    assert f"(pid {os.getpid()}" in finding.words


def test_a_free_port_has_no_listener() -> None:
    assert find_listener(HostAddress("http", "127.0.0.1", free_port())) is None


@pytest.mark.parametrize(
    "host,keys,is_open",
    [
        ("", "", True),
        ("0.0.0.0", "", True),
        ("[::]", "", True),
        ("127.0.0.2", "", False),
        ("", KEY, False),
        ("127.0.0.1", "", False),
        ("localhost", "", False),
        ("host.invalid", "", True),
    ],
)
def test_an_address_that_others_reach_without_a_key_is_a_warning(
    host: str, keys: str, is_open: bool
) -> None:
    found = network_findings(f"{host}:{free_port()}", api_keys=keys)
    assert (Level.WARNING in levels(found)) is is_open


@pytest.mark.parametrize(
    "origins,keys,is_open",
    [("*", "", True), ("https://page.example", "", False), ("*", KEY, False)],
)
def test_all_origins_without_a_key_are_a_warning(origins: str, keys: str, is_open: bool) -> None:
    found = network_findings(f"127.0.0.1:{free_port()}", origins=origins, api_keys=keys)
    assert any("OLLAMA_ORIGINS=*" in finding.words for finding in found) is is_open
    assert (Level.WARNING in levels(found)) is is_open


# --------------------------------------------------------------------------- specd.socket


def test_the_doctor_does_not_connect_to_a_waiting_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        [finding] = network_findings(
            held_socket=HeldSocket((f"127.0.0.1:{port}",), is_served=False)
        )
        with pytest.raises(BlockingIOError):
            server.accept()
    assert finding.level is Level.OK
    assert f"specd.socket holds http://127.0.0.1:{port}" in finding.words


def test_the_sockets_addresses_are_checked_instead_of_the_setting() -> None:
    with serving(b"Ollama is running", "specd/1.2.3") as port:
        found = network_findings(
            f"127.0.0.1:{free_port()}", HeldSocket((f"127.0.0.1:{port}", "/run/specd.sock"))
        )
    first, second, third = found
    assert f"specd 1.2.3 answers on http://127.0.0.1:{port}" in first.words
    assert "unix:/run/specd.sock" in second.words
    assert levels(found) == [Level.OK, Level.OK, Level.WARNING]
    assert "OLLAMA_HOST=127.0.0.1:" in third.words
    assert f"has no effect: specd.socket listens on http://127.0.0.1:{port}" in third.words
    assert "systemctl edit specd.socket" in third.remedy


def test_a_setting_equal_to_the_socket_is_no_warning() -> None:
    assert levels(
        network_findings("127.0.0.1:1234", HeldSocket(("127.0.0.1:1234",), is_served=False))
    ) == [Level.OK]


@pytest.mark.parametrize(
    "address,keys,is_open",
    [
        ("0.0.0.0:11434", "", True),
        ("[::]:11434", "", True),
        ("0.0.0.0:11434", KEY, False),
        ("[::1]:11434", "", False),
        ("/run/specd.sock", "", False),
        ("@specd", "", False),
    ],
)
def test_exposure_is_judged_by_the_sockets_addresses(
    address: str, keys: str, is_open: bool
) -> None:
    held_socket = HeldSocket(("127.0.0.1:11434", address), is_served=False)
    found = network_findings(held_socket=held_socket, api_keys=keys)
    assert (Level.WARNING in levels(found)) is is_open


@pytest.mark.parametrize(
    "socket_state,service_state,expected",
    [
        ("inactive", "active", None),
        ("active", "active", True),
        ("active", "inactive", False),
        ("active", "failed", False),
    ],
)
def test_the_held_socket_is_parsed(
    socket_state: str, service_state: str, expected: bool | None
) -> None:
    listens = "[::]:1 (Stream)\n127.0.0.1:2 (Stream)\n/run/x (Stream)\n/run/y (Datagram)"
    held_socket = parse_held_socket(
        {"ActiveState": socket_state, "Listen": listens}, {"ActiveState": service_state}
    )
    if expected is None:
        assert held_socket is None
        return
    assert held_socket == HeldSocket(("[::]:1", "127.0.0.1:2", "/run/x"), is_served=expected)
    assert held_socket.hosts == (HostAddress("http", "::", 1), HostAddress("http", "127.0.0.1", 2))
    assert held_socket.urls == ("http://[::]:1", "http://127.0.0.1:2", "unix:/run/x")


def levels(found: Iterable[Finding]) -> list[Level]:
    return [finding.level for finding in found]


def holder_name() -> str:
    return str(psutil.Process().name())
