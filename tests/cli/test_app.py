"""The command line as a whole: help, version, errors and exit codes."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

import specd
from specd.cli import app as application
from specd.cli.app import SpecdCommands, app
from specd.cli.lazy_group import CommandEntry
from tests.cli.fake_daemon import FakeDaemon, Json


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_prints_specds_and_ollamas(flag: str) -> None:
    result = CliRunner().invoke(app, [flag])
    assert result.exit_code == 0
    assert specd.__version__ in result.output
    assert specd.OLLAMA_API_VERSION in result.output


@pytest.mark.parametrize("entry", SpecdCommands.entries, ids=lambda entry: entry.name)
def test_every_command_has_help(entry: CommandEntry) -> None:
    result = CliRunner().invoke(app, [entry.name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")
    assert CliRunner().invoke(app, [entry.name, "-h"]).output == result.output
    if entry.name != "help":
        assert CliRunner().invoke(app, ["help", entry.name]).output == result.output


@pytest.mark.parametrize("entry", SpecdCommands.entries, ids=lambda entry: entry.name)
def test_the_list_and_the_command_print_the_same_help(entry: CommandEntry) -> None:
    first, *more = inspect.cleandoc(entry.help).split("\n\n")
    own = " ".join(CliRunner().invoke(app, [entry.name, "--help"]).output.split())
    if entry.name != "pairs":  # its help is that of `pairs show`
        assert all(" ".join(part.split()) in own for part in (first, *more))
    listed = CliRunner().invoke(app, ["--help"]).output
    assert (f" {entry.name} " in listed) is not entry.hidden
    if not entry.hidden:
        assert f"{first}\n" in listed  # whole: no line is cut at 80 columns


def test_flags_have_no_type_in_the_help() -> None:
    for entry in SpecdCommands.entries:
        assert "<bool>" not in CliRunner().invoke(app, [entry.name, "--help"]).output


def test_without_a_command_specd_prints_its_help() -> None:
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.output) == (0, CliRunner().invoke(app, ["-h"]).output)
    assert "Commands:" in result.output


def test_a_misspelt_command_gives_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["lisst"])
    assert result.exit_code == 2
    assert "Did you mean 'list'?" in result.output


def test_help_command_prints_the_help_of_a_command() -> None:
    result = CliRunner().invoke(app, ["help"])
    assert (result.exit_code, result.output) == (0, CliRunner().invoke(app, ["--help"]).output)
    assert CliRunner().invoke(app, ["help", "conjure"]).exit_code == 2


def test_an_unknown_command_is_bad_usage() -> None:
    assert CliRunner().invoke(app, ["conjure"]).exit_code == 2


def test_an_error_prints_one_sentence_and_exits_with_1(
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
        (KeyError("x"), "a bug in specd: KeyError('x') (set OLLAMA_DEBUG=1 for a traceback)"),
    ],
)
def test_an_error_prints_no_traceback(
    error: Exception,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(application, "app", fail)
    monkeypatch.delenv("OLLAMA_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        application.main()
    assert (ended.value.code, capsys.readouterr().err) == (1, f"Error: {said}\n")


def test_debug_shows_the_traceback_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
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


#: Each takes longer to import than a short command may take.
HEAVY = {"aiohttp", "asyncio", "numpy", "pydantic_settings", "rich.console", "specd.settings"}
NATIVE = {"llama_cpp", "gguf", "specd.daemon", "specd.engine"}
_PROGRAM = """
import sys
from specd.cli import main
try:
    main()
except SystemExit:
    pass
imported = {heavy} & set(sys.modules)
sys.exit(f"imported: {{sorted(imported)}}" if imported else 0)
"""


async def without(modules: set[str], arguments: Sequence[str], **environment: str) -> None:
    """Run `specd arguments`; fail if it imported one of the modules."""
    program = _PROGRAM.format(heavy=modules)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], []], ids=str)
async def test_help_and_version_import_no_heavy_module(arguments: Sequence[str]) -> None:
    await without(HEAVY | NATIVE | {"pydantic", "http.client", "specd.cli.list_"}, arguments)


@pytest.mark.parametrize("arguments", [["list"], ["cp", "a", "b"], ["stop", "a"]], ids=str)
async def test_a_short_command_imports_no_heavy_module(arguments: Sequence[str]) -> None:
    answers: Json = {"/api/tags": {"models": []}, "/api/copy": None, "/api/generate": {}}
    async with FakeDaemon(answers).serve() as url:
        await without(HEAVY | NATIVE, arguments, OLLAMA_HOST=url)


@pytest.mark.parametrize("command", ["run", "show", "pairs", "bench", "push"])
async def test_completion_imports_no_heavy_module(command: str) -> None:
    variables = {"COMP_WORDS": f"specd\n{command}\n", "COMP_CWORD": "2"}
    async with FakeDaemon({"/api/tags": {"models": []}}).serve() as url:
        await without(
            HEAVY | NATIVE,
            [],
            OLLAMA_HOST=url,
            _SPECD_COMPLETE="complete_bash",
            **variables,
        )


async def test_a_client_command_loads_no_native_code() -> None:
    parts = [{"response": "Hello"}, {"response": "", "done": True}]
    answers = {"/api/show": {"capabilities": ["completion"]}, "/api/generate": parts}
    async with FakeDaemon(answers).serve() as url:
        await without(NATIVE, ["run", "m", "Hi"], OLLAMA_HOST=url)
