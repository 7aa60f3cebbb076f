"""The command line as a whole: help, version, errors and exit codes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import specd
from specd.cli import app as application
from specd.cli.app import app


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_the_version_is_ours_and_ollamas(flag: str) -> None:
    result = CliRunner().invoke(app, [flag])
    assert result.exit_code == 0
    assert specd.__version__ in result.output
    assert specd.OLLAMA_API_VERSION in result.output


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "demo",
        "run",
        "list",
        "ps",
        "show",
        "stop",
        "pull",
        "push",
        "cp",
        "rm",
        "pairs",
        "bench",
        "trace",
        "start",
        "ls",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    assert CliRunner().invoke(app, ["help", command]).output == result.output


def test_help_of_all() -> None:
    result = CliRunner().invoke(app, ["help"])
    assert (result.exit_code, result.output) == (0, CliRunner().invoke(app, ["--help"]).output)
    assert CliRunner().invoke(app, ["help", "conjure"]).exit_code == 2


def test_a_command_that_is_not_one_is_bad_usage() -> None:
    assert CliRunner().invoke(app, ["conjure"]).exit_code == 2


def test_an_error_is_one_sentence_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{probe.getsockname()[1]}")
    monkeypatch.setattr(sys, "argv", ["specd", "list"])
    with pytest.raises(SystemExit) as ended:
        application.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: no daemon answers at http://127.0.0.1:")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "error,said",
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (KeyError("x"), "a bug of specd's: KeyError('x') (where: OLLAMA_DEBUG=1)"),
    ],
)
def test_no_error_is_a_traceback(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(application, "app", fail)
    monkeypatch.delenv("OLLAMA_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        application.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, f"Error: {said}\n")


def test_a_bug_can_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "app", {}.__getitem__)
    monkeypatch.setenv("OLLAMA_DEBUG", "1")
    with pytest.raises(TypeError):
        application.main()


def test_pairs_reads_the_store_without_a_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    result = CliRunner().invoke(app, ["pairs"])
    assert result.exit_code == 0
    assert "specd-demo:latest" in result.output


def test_talking_to_the_daemon_loads_no_native_code() -> None:
    program = (
        "import sys, specd.cli.app;"
        "heavy = {'llama_cpp', 'gguf', 'specd.daemon', 'specd.engine'} & set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
