"""`specd show`: its sections and single parts."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.ps import pair_lines
from specd.cli.show import _show, sections
from specd.cli.sync_client import SyncClient
from tests.cli.fake_daemon import FakeDaemon
from tests.cli.specd_command import specd
from tests.daemon_process import FAKE_ENGINE, running
from tests.gguf_files import OllamaStore, write_llama
from tests.gguf_projectors import write_llava

ANSWER = {
    "license": "MIT\n\nwho\nreads\nthis",
    "parameters": 'stop                           "<|end|>"\ntemperature                    0.5\n',
    "system": "Be :smile: brief.",
    "details": {"parameter_size": "1.2B", "quantization_level": "Q8_0"},
    "model_info": {
        "general.architecture": "llama",
        "general.tags": ["a", "b", "c", "d"],
        "llama.context_length": 131072,
        "llama.rope.freq_base": 500000.0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": None,
    },
    "projector_info": {
        "general.architecture": "clip",
        "general.parameter_count": 312_000_000,
        "clip.vision.embedding_length": 1024,
        "clip.vision.projection_dim": 768,
    },
    "tensors": [{"name": "output.weight", "type": "F16", "shape": [2, 3]}],
    "capabilities": ["completion", "vision"],
    "requires": "0.14.0",
}
BRIEF = """\
  Model
    architecture      llama
    parameters        1.2B
    context length    131072
    quantization      Q8_0
    requires          0.14.0

  Capabilities
    completion
    vision

  Projector
    architecture        clip
    parameters          312M
    embedding length    1024
    dimensions          768

  Parameters
    stop           "<|end|>"
    temperature    0.5

  System
    Be :smile: brief.

  License
    MIT
    who
    ...

"""


async def test_show_has_ollamas_sections_without_empty_ones() -> None:
    out = io.StringIO()
    async with FakeDaemon({"/api/show": ANSWER}).serve() as url:
        console = Console(file=out, width=40, emoji=False)
        await asyncio.to_thread(_show, SyncClient(url), console, "m")
    assert out.getvalue() == BRIEF
    assert sections({}) == []


def test_verbose_adds_metadata_and_tensors_before_the_texts() -> None:
    found = dict(sections(ANSWER, verbose=True))
    assert list(found)[4:] == ["Metadata", "Tensors", "System", "License"]
    assert [line.split(maxsplit=1)[1] for line in found["Metadata"]] == [
        "llama",
        "[a, b, c, ...+1 more]",
        "131072",
        "500000",
        "true",
        "null",
    ]
    assert found["Tensors"] == ["output.weight    F16    [2 3]"]


@pytest.mark.parametrize(
    "pair,said",
    [
        (
            {
                "drafter": "llama3.2:1b",
                "pair_source": "registry",
                "rule": "llama3.3*",
                "reason": "",
                "detail": "",
                "expected": {"code": 1.9, "chat": 1.5},
                "pull": [],
            },
            [
                "name         llama3.2:1b",
                "chosen by    registry",
                "rule         llama3.3*",
                "expected     1.9× code, 1.5× chat",
            ],
        ),
        (
            {
                "drafter": None,
                "pair_source": None,
                "rule": "",
                "reason": "drafter_not_found",
                "detail": "No drafter is installed.",
                "expected": {},
                "pull": ["llama3.2:1b", "llama3.2:3b"],
            },
            [
                "name       none",
                "reason     drafter_not_found",
                "why        No drafter is installed.",
                "to pull    llama3.2:1b, llama3.2:3b",
            ],
        ),
    ],
)
def test_the_drafter_section_comes_last(pair: dict[str, object], said: list[str]) -> None:
    assert sections(ANSWER | {"specd": pair})[-1] == ("Drafter", said)


def test_a_loaded_model_shows_its_exactness() -> None:
    exact = {"speculation": True, "parallel": False, "prompt_cache": True, "enforced": []}
    pair = {"drafter": "small:1b", "exact": exact}
    _, lines = sections(ANSWER | {"specd": pair})[-1]
    same = "with and without drafts; with a cached prompt or a new one."
    not_same = "Not guaranteed: alone or with parallel requests."
    assert [line.split("  ")[-1].strip() for line in lines] == ["small:1b", f"{same} {not_same}"]
    assert lines[-1].startswith("same text for a seed ")
    assert f"same text for a seed: {same} {not_same}" in pair_lines(
        {"state": "active", "exact": exact}
    )


def test_a_loaded_model_shows_the_acceptance_that_drafting_needs() -> None:
    pair = {"drafter": "small:1b", "threshold": 0.25, "threshold_source": "measured"}
    assert "acceptance    pays from 25%" in dict(sections(ANSWER | {"specd": pair}))["Drafter"]


def test_only_one_part_can_be_requested() -> None:
    result = CliRunner().invoke(app, ["show", "m", "--license", "--system"])
    assert "only one of" in str(result.exception)


LONG = "word " * 60
SYSTEM = f'"Quoted" to begin with, \ttabs, [bold], :smile:, ｜｜\n{LONG}end.\n\n'
TEMPLATE = '{{ .System }}\n{{ if eq .Prompt "x" }}\t{{ .Prompt }}{{ end }} '


@pytest.mark.timeout(120)
@pytest.mark.contract("command.show", "command.create")
async def test_a_redirected_modelfile_creates_the_same_model(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add(
        "x",
        weights=write_llama(tmp_path / "x.gguf", chat_template=None),
        draft=write_llama(tmp_path / "draft.gguf", seed=1),
        projector=write_llava(tmp_path / "p.gguf"),
        system=SYSTEM,
        template=TEMPLATE,
        params={"num_ctx": 2_000_000, "stop": ['"', "\tAI:", " b ", "c\n"], "temperature": 0.1},
        messages=[
            {"role": "user", "content": 'He said "hi"'},
            {"role": "assistant", "content": '"Hi", he said'},
        ],
        license=["MIT\n  indented\n", "BSD"],
    )
    async with running(tmp_path, engine=FAKE_ENGINE) as daemon:
        shown = await specd(daemon, "show", "--modelfile", "x", folder=tmp_path)
        (tmp_path / "Modelfile").write_bytes(shown)
        await specd(daemon, "create", "y", folder=tmp_path)
        again = await specd(daemon, "show", "--modelfile", "y", folder=tmp_path)
        assert again == shown.replace(b"# FROM x:latest", b"# FROM y:latest")
        assert await specd(daemon, "show", "y", "--system", folder=tmp_path) == SYSTEM.encode()
        template = await specd(daemon, "show", "y", "--template", folder=tmp_path)
        assert template == f"{TEMPLATE}\n".encode()
        answers = []
        for name in ("x", "y"):
            async with daemon.http.post("/api/show", json={"model": name}) as reply:
                answers.append(await reply.json())
    told, told_again = answers
    for key in ("parameters", "system", "template", "messages", "license", "capabilities"):
        assert told[key] == told_again[key]
