"""The service as it is shipped, under a systemd of its own: its life, and what it says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.box import Box

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

VERSION = "/api/version"
URL = "http://127.0.0.1:11434"


def generate(prompt: str = "def f", n_tokens: int = 8, **fields: object) -> str:
    options = {"num_predict": n_tokens, "temperature": 0}
    return json.dumps({"model": "specd-demo", "prompt": prompt, "options": options} | fields)


def answer(box: Box, **fields: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(
        box.curl("/api/generate", "-d", generate(stream=False, **fields))
    )
    return said


def engines(box: Box) -> list[int]:
    return [pid for pid, command in box.processes().items() if "specd.engine" in command]


# --------------------------------------------------------------------------- life


def test_when_it_is_started_it_answers(box: Box) -> None:
    box("systemctl", "start", "specd")
    # Not a moment later: `start` returns when the daemon has said that it is ready.
    assert json.loads(box.curl(VERSION))["version"]
    assert box.show("specd", "ActiveState") == "active"
    assert box.show("specd", "StatusText").startswith(f"listening on {URL}")


def test_it_starts_with_the_machine_once_it_is_enabled(box: Box) -> None:
    box("systemctl", "enable", "specd.service", "specd.socket")
    wanted = box.show("multi-user.target", "Wants"), box.show("sockets.target", "Wants")
    box("systemctl", "disable", "specd.service", "specd.socket")
    assert "specd.service" in wanted[0]
    assert "specd.socket" in wanted[1]


def test_the_demo_answers_by_llama_cpp(box: Box) -> None:
    box("systemctl", "start", "specd")
    said = answer(box)
    assert (said["done"], said["eval_count"]) == (True, 8)
    assert said["speculation"]["drafter"]


def test_its_status_says_what_it_does(box: Box) -> None:
    box.drop_in("specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=0s"\n')
    box("systemctl", "start", "specd")

    def shows(words: str) -> bool:
        return words in box.show("specd", "StatusText")

    box.until(lambda: shows("no model is loaded"), what="nothing is loaded")
    answer(box)
    box.until(lambda: shows("loaded: specd-demo:latest"), what="the model is named")
    with box.popen("curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)):
        box.until(lambda: shows("1 answer runs"), what="the answer is counted")
        box("systemctl", "stop", "specd")


def test_the_end_of_an_answer_is_waited_for(box: Box) -> None:
    """Its only engine is not told to stop, by a signal to all processes, while it answers."""
    box("systemctl", "start", "specd")
    answer(box)
    with box.popen("curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1500)) as client:
        assert client.stdout is not None
        first = client.stdout.readline()
        box("systemctl", "stop", "specd")
        lines = [json.loads(line) for line in (first, *client.stdout)]
    assert [line["done"] for line in lines].count(True) == 1
    assert lines[-1]["done_reason"] == "length"
    assert lines[-1]["eval_count"] == 1500
    assert box.show("specd", "Result") == "success"
    assert box.processes() == {}


def test_a_stop_cuts_off_what_takes_too_long(box: Box) -> None:
    box.drop_in("specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=1s"\n')
    box("systemctl", "start", "specd")
    with box.popen(
        "curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)
    ) as client:
        assert client.stdout is not None
        first = client.stdout.readline()
        box("systemctl", "stop", "specd")
        lines = [json.loads(line) for line in (first, *client.stdout)]
    assert "error" in lines[-1]
    assert not any("error" in line or line["done"] for line in lines[:-1])
    assert box.show("specd", "Result") == "success"  # not "timeout"
    assert box.processes() == {}


def test_the_stop_waits_as_long_as_the_answers_may_take(box: Box) -> None:
    """The unit's own limit would have ended it after a second."""
    box.drop_in("specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=3s"\nTimeoutStopSec=1s\n')
    box("systemctl", "start", "specd")
    with box.popen(
        "curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)
    ) as client:
        assert client.stdout is not None
        client.stdout.readline()
        box("systemctl", "stop", "specd")
        *_, last = client.stdout
    assert "error" in json.loads(last)
    assert box.show("specd", "Result") == "success"


# --------------------------------------------------------------------------- faults


def test_a_daemon_that_was_killed_is_started_again(box: Box) -> None:
    box.drop_in("specd", "[Service]\nRestartSec=0\n")
    box("systemctl", "start", "specd")
    answer(box)
    before = box.processes()
    assert len(engines(box)) == 1
    box("kill", "-9", str(box.pid()))
    box.until_shows("specd", NRestarts="1", ActiveState="active")
    assert not set(before) & set(box.processes())
    assert answer(box)["done"]


@pytest.mark.parametrize("signal", ["STOP", "ABRT"])
def test_an_engine_that_is_lost_costs_no_restart(box: Box, signal: str) -> None:
    """The daemon itself ends and replaces it: systemd sees nothing of it."""
    box.drop_in("specd", '[Service]\nEnvironment="SPECD_ENGINE_TIMEOUT=1s"\n')
    box("systemctl", "start", "specd")
    answer(box)
    [engine] = engines(box)
    box("kill", f"-{signal}", str(engine))
    box.curl("/api/generate", "-d", generate(stream=False))
    box.until(lambda: engine not in engines(box), what="the engine is gone")
    assert answer(box)["done"]
    assert box.show("specd", "NRestarts") == "0"


def test_an_event_loop_that_stands_still_is_ended_and_started_again(box: Box) -> None:
    box.drop_in("specd", "[Service]\nWatchdogSec=2\nRestartSec=0\n")
    box("systemctl", "start", "specd")
    answer(box)
    before = box.processes()
    box("kill", "-STOP", str(box.pid()))
    box.until_shows("specd", NRestarts="1", ActiveState="active")
    assert not set(before) & set(box.processes())
    assert answer(box)["done"]
    log = box.log()
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log  # and where it stood


def test_a_daemon_that_is_well_is_left_alone_by_the_watchdog(box: Box) -> None:
    """For several of its limits, with an answer that takes as long."""
    box.drop_in("specd", '[Service]\nWatchdogSec=1\nEnvironment="SPECD_SHUTDOWN_GRACE=0s"\n')
    box("systemctl", "start", "specd")
    since = int(box.show("specd", "ActiveEnterTimestampMonotonic"))

    def pinged_s() -> float:
        return (int(box.show("specd", "WatchdogTimestampMonotonic")) - since) / 1e6

    with box.popen("curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)):
        box.until(lambda: pinged_s() > 4, what="it pings for longer than the limit")
        assert box.show("specd", "NRestarts") == "0"
        box("systemctl", "stop", "specd")


def test_a_setting_that_cannot_be_used_is_told_in_the_journal(box: Box) -> None:
    box.drop_in("specd", '[Service]\nRestart=no\nEnvironment="SPECD_ACCEPTANCE_THRESHOLD=much"\n')
    assert box.result("systemctl", "start", "specd").returncode != 0
    assert box.show("specd", "Result") == "exit-code"
    assert "SPECD_ACCEPTANCE_THRESHOLD" in box.log()
    assert "Traceback" not in box.log()


# --------------------------------------------------------------------------- settings


def test_a_drop_in_sets_what_it_does_for_ollama(box: Box) -> None:
    """As `systemctl edit specd` would write it, from Ollama's own FAQ."""
    box.drop_in(
        "specd",
        "[Service]\n"
        'Environment="OLLAMA_HOST=0.0.0.0:12345"\n'
        'Environment="OLLAMA_KEEP_ALIVE=0" "OLLAMA_ORIGINS=https://a.example, https://b.example"\n',
    )
    box("systemctl", "start", "specd")
    assert box.show("specd", "StatusText").startswith("listening on http://0.0.0.0:12345")
    with_origin = "-so", "/dev/null", "-w", "%{http_code}", "-H"
    url = f"http://127.0.0.1:12345{VERSION}"
    assert box("curl", *with_origin, "Origin: https://a.example", url) == "200"
    assert box("curl", *with_origin, "Origin: https://c.example", url) == "403"


def test_systemctl_edit_itself(box: Box) -> None:
    """It needs a terminal, and an editor: here one that writes what it is told."""
    box.write(
        "/run/editor", "#!/bin/sh\nprintf '[Service]\\nEnvironment=OLLAMA_HOST=:12345\\n' >\"$1\"\n"
    )
    box("chmod", "+x", "/run/editor")
    box("script", "-qec", "env SYSTEMD_EDITOR=/run/editor systemctl edit specd", "/dev/null")
    box("systemctl", "start", "specd")
    assert ":12345" in box.show("specd", "StatusText")


def test_the_file_of_settings_is_read_and_wins(box: Box) -> None:
    box.write("/etc/specd/specd.env", "OLLAMA_HOST=127.0.0.1:12345\n")
    box("systemd-tmpfiles", "--create", "specd.conf")
    box.drop_in("specd", '[Service]\nEnvironment="OLLAMA_HOST=127.0.0.1:11111"\n')
    box("systemctl", "start", "specd")
    assert "127.0.0.1:12345" in box.show("specd", "StatusText")
    assert box("stat", "-c", "%a %U %G", "/etc/specd/specd.env").split() == ["640", "root", "specd"]


def test_reload_reads_the_settings_again_in_the_same_process(box: Box) -> None:
    box.write("/etc/specd/specd.env", "OLLAMA_ORIGINS=https://a.example\n")
    box("systemd-tmpfiles", "--create", "specd.conf")
    box("systemctl", "start", "specd")
    pid = box.pid()

    def status_for(origin: str) -> str:
        return box.curl(
            VERSION, "-so", "/dev/null", "-w", "%{http_code}", "-H", f"Origin: {origin}"
        )

    assert (status_for("https://a.example"), status_for("https://b.example")) == ("200", "403")
    box.write("/etc/specd/specd.env", "OLLAMA_ORIGINS=https://b.example\n")
    box("systemctl", "reload", "specd")
    box.until(lambda: status_for("https://b.example") == "200", what="the new origin may call")
    assert status_for("https://a.example") == "403"
    assert box.pid() == pid


# --------------------------------------------------------------------------- the journal


def test_the_journal_has_what_the_daemon_says(box: Box) -> None:
    box("systemctl", "start", "specd")
    answer(box, prompt="a secret of its user")
    box("systemctl", "stop", "specd")
    box("journalctl", "--sync")
    log = box.log()
    assert f"listens on {URL}" in log
    assert "specd-demo:latest" in log
    assert "stopped" in log
    assert "secret" not in log
    identifiers = box("journalctl", "-q", "-u", "specd", "-t", "specd", "-o", "cat")
    assert f"listens on {URL}" in identifiers
