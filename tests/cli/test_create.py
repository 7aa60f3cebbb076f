"""`specd create` with a daemon: uploads, requests and errors."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specd.cli import create_body, modelfile
from specd.cli.app import app
from specd.cli.client import Client
from specd.cli.create import _create
from specd.cli.sync_client import DaemonRefused
from specd.errors import InvalidRequest, SpecdError
from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import VOCABULARY, OllamaStore, write_llama, write_truncated


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        yield daemon


async def make(daemon: Daemon, folder: Path, text: str) -> str:
    """Return the output of the command."""
    screen = io.StringIO()
    request = create_body.create_request(modelfile.parse(text), folder)
    await _create(Client(daemon.url), Console(file=screen, width=200), "made", request)
    return screen.getvalue()


async def test_create_uploads_a_model_and_its_drafter(daemon: Daemon, tmp_path: Path) -> None:
    write_llama(tmp_path / "big.gguf")
    write_llama(tmp_path / "small.gguf", seed=1)
    text = "FROM big.gguf\nDRAFT ./small.gguf\nSYSTEM Be brief.\nPARAMETER stop <x>\n"
    printed = await make(daemon, tmp_path, text)
    assert "copying big.gguf" in printed
    assert printed.rstrip().endswith("success")
    async with daemon.http.post("/api/show", json={"model": "made"}) as reply:
        shown = await reply.json()
    assert shown["system"] == "Be brief."
    assert shown["parameters"].split() == ["stop", '"<x>"']
    assert "\nDRAFT " in shown["modelfile"]
    again = await make(daemon, tmp_path, text)
    assert "copying" not in again


async def test_create_from_another_model(daemon: Daemon, tmp_path: Path) -> None:
    write_llama(tmp_path / "big.gguf")
    await make(daemon, tmp_path, "FROM big.gguf")
    await make(daemon, tmp_path, "FROM made\nSYSTEM Be kind.")
    async with daemon.http.post("/api/show", json={"model": "made"}) as reply:
        assert (await reply.json())["system"] == "Be kind."


async def test_create_prints_the_daemons_error(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(DaemonRefused, match="not in GGUF format"):
        await make(daemon, tmp_path, "FROM bad.gguf")


async def test_a_missing_base_model_is_an_error_with_its_line(
    daemon: Daemon, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=r"^Modelfile:2: pull model manifest: "):
        await make(daemon, tmp_path, "# A comment.\nFROM http://localhost:1/library/nothing")


def test_a_missing_modelfile_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["create", "x", "-f", str(tmp_path / "none")])
    assert "cannot read" in str(result.exception)


def refused(folder: Path, text: str, *options: str) -> str:
    """Return the error of `create` for this Modelfile, without a daemon."""
    file = folder / "My.modelfile"
    file.write_text(text)
    result = CliRunner().invoke(app, ["create", "x", "-f", str(file), *options])
    assert isinstance(result.exception, SpecdError), result
    return str(result.exception).replace(str(folder), "…")


def test_errors_name_the_file_and_line_of_the_modelfile(tmp_path: Path) -> None:
    write_llama(tmp_path / "big.gguf")
    write_truncated(tmp_path / "cut.gguf")
    said = refused(tmp_path, "FROM big.gguf\nPARAMETER temperature hot")
    assert said == "…/My.modelfile:2: invalid float value [hot]"
    said = refused(tmp_path, "# A comment.\nFROM cut.gguf")
    assert said.startswith("…/My.modelfile:2: …/cut.gguf is not a usable GGUF file: ")
    said = refused(tmp_path, "FROM big.gguf\nDRAFT cut.gguf")
    assert said.startswith("…/My.modelfile:2: …/cut.gguf is not a usable GGUF file: ")


def test_a_file_that_is_not_a_model_is_refused_before_the_upload(tmp_path: Path) -> None:
    write_llama(tmp_path / "big.gguf")
    for name in ("bad.gguf", "weights.bin"):
        (tmp_path / name).write_bytes(b"no model")
        said = refused(tmp_path, f"# A comment.\nFROM ./{name}")
        assert said == f"…/My.modelfile:2: …/{name} is neither GGUF nor safetensors"
        said = refused(tmp_path, f"FROM big.gguf\nADAPTER {name}")
        assert said == f"…/My.modelfile:2: …/{name} is neither GGUF nor safetensors"


def test_safetensors_without_their_config_are_refused_before_the_converter(
    tmp_path: Path,
) -> None:
    (tmp_path / "st").mkdir()
    (tmp_path / "st" / "model.safetensors").touch()
    said = refused(tmp_path, "FROM ./st")
    assert said == "…/My.modelfile:1: the safetensors come without config.json"


def test_an_incompatible_drafter_is_refused_before_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = write_llama(tmp_path / "big.gguf")
    write_llama(tmp_path / "other.gguf", vocabulary=replace(VOCABULARY, pre="qwen2"))
    OllamaStore(tmp_path / "models").add("big", weights=big)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    for source in ("big.gguf", "big"):
        said = refused(tmp_path, f"FROM {source}\nDRAFT other.gguf")
        assert said == (
            f"…/My.modelfile:2: The drafter other.gguf has another vocabulary than {source}:"
            " the tokenizers cut text differently before they look up tokens (llama-bpe, qwen2)."
            " (--force creates the model anyway)"
        )
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    assert "no daemon answers" in refused(tmp_path, "FROM big\nDRAFT other.gguf", "--force")


def test_experimental_is_an_error_with_the_reason(tmp_path: Path) -> None:
    assert refused(tmp_path, "FROM x", "--experimental").startswith("--experimental is not")


def test_draft_quantize_requires_a_drafter(tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM x")
    arguments = ["create", "x", "-f", str(tmp_path / "Modelfile"), "--draft-quantize", "Q8_0"]
    assert "requires a DRAFT model" in str(CliRunner().invoke(app, arguments).exception)
