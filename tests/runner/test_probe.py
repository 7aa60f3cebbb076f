"""The GPUs that llama.cpp lists, read from a process that may fail in every way."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from specd.core import BackendDevice
from specd.runner import probe

ROOT = Path(__file__).parents[2]
FAKE = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.engine")
OFFERED = (
    BackendDevice(
        name="CUDA0",
        backend="CUDA",
        description="Fast 9000",
        integrated=False,
        bus_id="0000:41:00.0",
        total_bytes=24,
        free_bytes=23,
    ),
    BackendDevice(name="Vulkan0", backend="Vulkan", description="Shared", integrated=True),
)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("FAKE_DEVICES", request.param)


JSON = msgspec.json.encode(OFFERED).decode()


@pytest.mark.parametrize("said", [JSON], indirect=True)
@pytest.mark.usefixtures("said")
def test_the_gpus_that_the_process_lists_are_returned(caplog: pytest.LogCaptureFixture) -> None:
    assert probe(FAKE) == OFFERED
    assert not caplog.records


@pytest.mark.parametrize("said", ["full " + JSON], indirect=True)
@pytest.mark.usefixtures("said")
def test_a_list_printed_before_a_gpu_error_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert probe(FAKE) == OFFERED
    assert "exit status 3: CUDA error: out of memory" in caplog.text


@pytest.mark.parametrize("said", ["old driver"], indirect=True)
@pytest.mark.usefixtures("said")
def test_the_reason_for_an_empty_list_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert probe(FAKE) == ()
    assert "finds no GPU: failed to initialize CUDA: the driver is too old" in caplog.text


@pytest.mark.parametrize("said", ["silence"], indirect=True)
@pytest.mark.usefixtures("said")
def test_an_output_without_a_list_gives_none(caplog: pytest.LogCaptureFixture) -> None:
    assert probe(FAKE) is None
    assert "did not list its GPUs" in caplog.text


@pytest.mark.parametrize("said", ["hang"], indirect=True)
@pytest.mark.usefixtures("said")
def test_a_process_that_hangs_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    assert probe(FAKE, timeout_s=0.2) is None
    assert "more than 0.2 s" in caplog.text


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def line(name: str) -> str:
    """Return a command that prints a list of one device; the shell expands `name`."""
    device = BackendDevice(name="NAME", backend="B", description="", integrated=False)
    said = msgspec.json.encode([device]).decode()
    return f"echo '{said}' | sed \"s/NAME/{name}/\""


def test_a_list_printed_before_a_hang_is_used_and_the_process_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = probe(shell(f"{line('$$')}; exec sleep 60"), timeout_s=2.0)
    assert found is not None
    assert not psutil.pid_exists(int(found[0].name))
    assert "more than 2 s" in caplog.text


def test_the_last_of_several_lists_is_used() -> None:
    found = probe(shell(f"{line('first')}; {line('last')}; echo '{{}}'"))
    assert found is not None
    assert [device.name for device in found] == ["last"]


def test_the_process_has_the_environment_of_an_engine_and_its_own_group() -> None:
    found = probe(shell(line("$GGML_NO_BACKTRACE-$(($(ps -o pgid= -p $$)))-$$")))
    assert found is not None
    fixed, group, process = found[0].name.split("-")
    assert fixed == "1"
    assert group == process


@pytest.mark.parametrize("command", [("/nonexistent/engine",), ("false",)])
def test_a_command_that_fails_logs_one_warning(
    caplog: pytest.LogCaptureFixture, command: tuple[str, ...]
) -> None:
    assert probe(command) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_real_engine_lists_its_gpus(caplog: pytest.LogCaptureFixture) -> None:
    """The number of GPUs depends on this machine."""
    found = probe()
    assert found is not None
    assert all(device.name and device.backend for device in found)
    assert not caplog.records
