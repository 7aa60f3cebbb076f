"""The shipped service under a real systemd: start, stop, restart, settings, status and logs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.container import SystemdContainer

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

VERSION = "/api/version"
URL = "http://127.0.0.1:11434"


def generate(prompt: str = "def f", n_tokens: int = 8, **fields: object) -> str:
    options = {"num_predict": n_tokens, "temperature": 0}
    return json.dumps({"model": "specd-demo", "prompt": prompt, "options": options} | fields)


def answer(container: SystemdContainer, **fields: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(
        container.curl("/api/generate", "-d", generate(stream=False, **fields))
    )
    return said


def engines(container: SystemdContainer) -> list[int]:
    return [pid for pid, command in container.processes().items() if "specd.engine" in command]


# --------------------------------------------------------------------------- life


def test_the_service_answers_as_soon_as_systemctl_start_returns(
    container: SystemdContainer,
) -> None:
    container("systemctl", "start", "specd")
    # No wait: `start` returns once the daemon has reported that it is ready.
    assert json.loads(container.curl(VERSION))["version"]
    assert container.show("specd", "ActiveState") == "active"
    assert container.show("specd", "StatusText").startswith(f"listening on {URL}")


def test_an_enabled_service_starts_at_boot(container: SystemdContainer) -> None:
    container("systemctl", "enable", "specd.service", "specd.socket")
    wanted = container.show("multi-user.target", "Wants"), container.show("sockets.target", "Wants")
    container("systemctl", "disable", "specd.service", "specd.socket")
    assert "specd.service" in wanted[0]
    assert "specd.socket" in wanted[1]


def test_the_demo_pair_answers_with_llama_cpp(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd")
    said = answer(container)
    assert (said["done"], said["eval_count"]) == (True, 8)
    assert said["speculation"]["drafter"]


def test_the_systemd_status_names_the_loaded_model(container: SystemdContainer) -> None:
    container.drop_in("specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=0s"\n')
    container("systemctl", "start", "specd")

    def shows(words: str) -> bool:
        return words in container.show("specd", "StatusText")

    container.wait_until(lambda: shows("no model loaded"), what="nothing is loaded")
    answer(container)
    container.wait_until(lambda: shows("loaded: specd-demo:latest"), what="the model is named")
    with container.popen("curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)):
        container.wait_until(lambda: shows("1 running answer"), what="the answer is counted")
        container("systemctl", "stop", "specd")


def test_a_stop_waits_for_the_running_answer(container: SystemdContainer) -> None:
    """The engine gets no signal while it answers."""
    container("systemctl", "start", "specd")
    answer(container)
    with container.popen(
        "curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1500)
    ) as client:
        assert client.stdout is not None
        first = client.stdout.readline()
        container("systemctl", "stop", "specd")
        lines = [json.loads(line) for line in (first, *client.stdout)]
    assert [line["done"] for line in lines].count(True) == 1
    assert lines[-1]["done_reason"] == "length"
    assert lines[-1]["eval_count"] == 1500
    assert container.show("specd", "Result") == "success"
    assert container.processes() == {}


def test_a_stop_ends_an_answer_after_the_grace_period(container: SystemdContainer) -> None:
    container.drop_in("specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=1s"\n')
    container("systemctl", "start", "specd")
    with container.popen(
        "curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)
    ) as client:
        assert client.stdout is not None
        first = client.stdout.readline()
        container("systemctl", "stop", "specd")
        lines = [json.loads(line) for line in (first, *client.stdout)]
    assert "error" in lines[-1]
    assert not any("error" in line or line["done"] for line in lines[:-1])
    assert container.show("specd", "Result") == "success"  # not "timeout"
    assert container.processes() == {}


def test_a_stop_waits_for_the_grace_period_beyond_the_limit_of_the_unit(
    container: SystemdContainer,
) -> None:
    """The grace period is three seconds, with `TimeoutStopSec=1s`."""
    container.drop_in(
        "specd", '[Service]\nEnvironment="SPECD_SHUTDOWN_GRACE=3s"\nTimeoutStopSec=1s\n'
    )
    container("systemctl", "start", "specd")
    with container.popen(
        "curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)
    ) as client:
        assert client.stdout is not None
        client.stdout.readline()
        container("systemctl", "stop", "specd")
        *_, last = client.stdout
    assert "error" in json.loads(last)
    assert container.show("specd", "Result") == "success"


# --------------------------------------------------------------------------- faults


def test_a_killed_daemon_is_restarted(container: SystemdContainer) -> None:
    container.drop_in("specd", "[Service]\nRestartSec=0\n")
    container("systemctl", "start", "specd")
    answer(container)
    before = container.processes()
    assert len(engines(container)) == 1
    container("kill", "-9", str(container.pid()))
    container.wait_until_shows("specd", NRestarts="1", ActiveState="active")
    assert not set(before) & set(container.processes())
    assert answer(container)["done"]


@pytest.mark.parametrize("signal", ["STOP", "ABRT"])
def test_a_lost_engine_causes_no_restart(container: SystemdContainer, signal: str) -> None:
    """The daemon ends and replaces the engine; systemd is not involved."""
    container.drop_in("specd", '[Service]\nEnvironment="SPECD_ENGINE_TIMEOUT=1s"\n')
    container("systemctl", "start", "specd")
    answer(container)
    [engine] = engines(container)
    container("kill", f"-{signal}", str(engine))
    container.curl("/api/generate", "-d", generate(stream=False))
    container.wait_until(lambda: engine not in engines(container), what="the engine is gone")
    assert answer(container)["done"]
    assert container.show("specd", "NRestarts") == "0"


def test_the_watchdog_restarts_a_daemon_that_hangs(
    container: SystemdContainer,
) -> None:
    container.drop_in("specd", "[Service]\nWatchdogSec=2\nRestartSec=0\n")
    container("systemctl", "start", "specd")
    answer(container)
    before = container.processes()
    container("kill", "-STOP", str(container.pid()))
    container.wait_until_shows("specd", NRestarts="1", ActiveState="active")
    assert not set(before) & set(container.processes())
    assert answer(container)["done"]
    log = container.log()
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log  # and the stack trace


def test_the_watchdog_does_not_restart_a_busy_daemon(container: SystemdContainer) -> None:
    """One long answer takes several times the watchdog's limit."""
    container.drop_in("specd", '[Service]\nWatchdogSec=1\nEnvironment="SPECD_SHUTDOWN_GRACE=0s"\n')
    container("systemctl", "start", "specd")
    since = int(container.show("specd", "ActiveEnterTimestampMonotonic"))

    def pinged_s() -> float:
        return (int(container.show("specd", "WatchdogTimestampMonotonic")) - since) / 1e6

    with container.popen("curl", "-sSN", f"{URL}/api/generate", "-d", generate(n_tokens=1_000_000)):
        container.wait_until(lambda: pinged_s() > 4, what="it pings for longer than the limit")
        assert container.show("specd", "NRestarts") == "0"
        container("systemctl", "stop", "specd")


def test_an_invalid_setting_is_reported_in_the_journal(container: SystemdContainer) -> None:
    container.drop_in(
        "specd", '[Service]\nRestart=no\nEnvironment="SPECD_ACCEPTANCE_THRESHOLD=much"\n'
    )
    assert container.result("systemctl", "start", "specd").returncode != 0
    assert container.show("specd", "Result") == "exit-code"
    assert "SPECD_ACCEPTANCE_THRESHOLD" in container.log()
    assert "Traceback" not in container.log()


# --------------------------------------------------------------------------- settings


def test_a_drop_in_sets_the_same_variables_as_for_ollama(container: SystemdContainer) -> None:
    """The drop-in follows Ollama's FAQ, as `systemctl edit specd` would write it."""
    container.drop_in(
        "specd",
        "[Service]\n"
        'Environment="OLLAMA_HOST=0.0.0.0:12345"\n'
        'Environment="OLLAMA_KEEP_ALIVE=0" "OLLAMA_ORIGINS=https://a.example, https://b.example"\n',
    )
    container("systemctl", "start", "specd")
    assert "http://0.0.0.0:12345" in container.show("specd", "StatusText")
    with_origin = "-so", "/dev/null", "-w", "%{http_code}", "-H"
    url = f"http://127.0.0.1:12345{VERSION}"
    assert container("curl", *with_origin, "Origin: https://a.example", url) == "200"
    assert container("curl", *with_origin, "Origin: https://c.example", url) == "403"


def test_systemctl_edit_changes_a_setting(container: SystemdContainer) -> None:
    """The command runs in a terminal, with a stub as the editor."""
    container.write(
        "/run/editor", "#!/bin/sh\nprintf '[Service]\\nEnvironment=OLLAMA_HOST=:12345\\n' >\"$1\"\n"
    )
    container("chmod", "+x", "/run/editor")
    container("script", "-qec", "env SYSTEMD_EDITOR=/run/editor systemctl edit specd", "/dev/null")
    container("systemctl", "start", "specd")
    assert ":12345" in container.show("specd", "StatusText")


def test_the_environment_file_overrides_a_drop_in(container: SystemdContainer) -> None:
    container.write("/etc/specd/specd.env", "OLLAMA_HOST=127.0.0.1:12345\n")
    container("systemd-tmpfiles", "--create", "specd.conf")
    container.drop_in("specd", '[Service]\nEnvironment="OLLAMA_HOST=127.0.0.1:11111"\n')
    container("systemctl", "start", "specd")
    assert "127.0.0.1:12345" in container.show("specd", "StatusText")
    assert container("stat", "-c", "%a %U %G", "/etc/specd/specd.env").split() == [
        "640",
        "root",
        "specd",
    ]


def test_a_reload_applies_new_settings_in_the_same_process(container: SystemdContainer) -> None:
    container.write("/etc/specd/specd.env", "OLLAMA_ORIGINS=https://a.example\n")
    container("systemd-tmpfiles", "--create", "specd.conf")
    container("systemctl", "start", "specd")
    pid = container.pid()

    def status_for(origin: str) -> str:
        return container.curl(
            VERSION, "-so", "/dev/null", "-w", "%{http_code}", "-H", f"Origin: {origin}"
        )

    assert (status_for("https://a.example"), status_for("https://b.example")) == ("200", "403")
    container.write("/etc/specd/specd.env", "OLLAMA_ORIGINS=https://b.example\n")
    container("systemctl", "reload", "specd")
    container.wait_until(
        lambda: status_for("https://b.example") == "200", what="the new origin may call"
    )
    assert status_for("https://a.example") == "403"
    assert container.pid() == pid


# --------------------------------------------------------------------------- the journal


def test_the_journal_has_the_log_without_prompts(container: SystemdContainer) -> None:
    container("systemctl", "start", "specd")
    answer(container, prompt="a secret of its user")
    container("systemctl", "stop", "specd")
    container("journalctl", "--sync")
    log = container.log()
    assert f"listens on {URL}" in log
    assert "specd-demo:latest" in log
    assert "stopped" in log
    assert "secret" not in log
    identifiers = container("journalctl", "-q", "-u", "specd", "-t", "specd", "-o", "cat")
    assert f"listens on {URL}" in identifiers
