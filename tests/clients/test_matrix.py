"""Unchanged third-party clients in their own processes: list, stream, tools, format, embeddings."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import PROGRAMS, node_environment, python_environment, run_program
from tests.clients.programs.questionnaire import CITY_SCHEMA, WEATHER
from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.scripted_model import write_scripted_model

WHO = "I am a model of few words, and these were all of them."
SUNNY = "It is sunny in Paris."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEMPLATE = (
    "{%- for message in messages -%}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{%- for call in message.tool_calls or [] -%}"
    "<tool_call>{{ call.function | tojson }}</tool_call>"
    "{%- endfor -%}"
    "{%- endfor -%}"
    "<|assistant|>"
    "{%- if messages[-1].role == 'tool' -%}R"
    "{%- elif tools -%}C"
    "{%- else -%}A"
    "{%- endif -%}"
)

PYTHON = [
    pytest.param("ollama_python.py", marks=pytest.mark.contract("clients.ollama-python")),
    pytest.param("openai_python.py", marks=pytest.mark.contract("clients.openai-python")),
    pytest.param("anthropic_python.py", marks=pytest.mark.contract("clients.anthropic-python")),
    pytest.param("with_langchain.py", marks=pytest.mark.contract("clients.langchain")),
    pytest.param("with_llama_index.py", marks=pytest.mark.contract("clients.llama-index")),
    pytest.param("with_litellm.py", marks=pytest.mark.contract("clients.litellm")),
    pytest.param("with_llm.py", marks=pytest.mark.contract("clients.llm")),
    pytest.param("with_pydantic_ai.py", marks=pytest.mark.contract("clients.pydantic-ai")),
]
#: The error that each raises for a model that does not exist.
ERRORS = {
    "ollama_python.py": "ResponseError",
    "ollama_js.mjs": "ResponseError",
    "openai_python.py": "NotFoundError",
    "anthropic_python.py": "NotFoundError",
    "with_langchain.py": "ResponseError",
    "with_llama_index.py": "ResponseError",
    "with_litellm.py": "APIConnectionError",
    "with_llm.py": "UnknownModelError",
    "with_pydantic_ai.py": "ModelNotFoundError",
}
WITHOUT_EMBEDDINGS = {"anthropic_python.py", "with_llama_index.py", "with_pydantic_ai.py"}
WITHOUT_FORMATS = {"anthropic_python.py"}


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    store = OllamaStore(tmp_path / "models")
    scripts = {"A": WHO, "C": CALL, "R": SUNNY}
    store.add("speaker", weights=write_scripted_model(tmp_path / "speaker.gguf", scripts, TEMPLATE))
    embedder = write_llama(tmp_path / "embedder.gguf", extra={"llama.pooling_type": 1})
    store.add("embedder", weights=embedder)
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        yield daemon


@pytest.mark.timeout(600)  # the first one waits for the environment to be made
@pytest.mark.parametrize("program", PYTHON)
async def test_a_python_client_works(daemon: Daemon, program: str, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_environment)
    report = await run_program(str(python), str(PROGRAMS / program), daemon.url, home=tmp_path)
    check(program, report)


@pytest.mark.contract("clients.ollama-js")
@pytest.mark.timeout(600)
async def test_the_javascript_client_works(daemon: Daemon, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(node_environment)
    if folder is None:
        pytest.skip("no npm on this machine")
    program = str(shutil.copy(PROGRAMS / "ollama_js.mjs", folder))  # imports packages of its folder
    given = json.dumps({"schema": CITY_SCHEMA, "weather": WEATHER}).encode()
    check(
        "ollama_js.mjs", await run_program("node", program, daemon.url, home=tmp_path, given=given)
    )


def check(program: str, report: dict[str, Any]) -> None:
    assert any("speaker" in name for name in report["models"])
    assert "".join(report["chunks"]).strip() == WHO
    assert len([chunk for chunk in report["chunks"] if chunk]) > 1
    assert report["call"] == ["get_weather", {"city": "Paris"}]
    assert report["after_call"] == SUNNY
    if program not in WITHOUT_FORMATS:
        place = json.loads(report["structured"])
        assert place["kind"] in {"city", "village"}
        assert 0 <= place["rivers"] <= 9
    if program not in WITHOUT_EMBEDDINGS:
        assert report["embedding"] == 32
    kind, words = report["error"]
    assert (kind, "no-such-model" in words) == (ERRORS[program], True)
