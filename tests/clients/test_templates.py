"""A model with two templates, through the daemon and a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = pytest.mark.native

GO = (
    "{{ if .Suffix }}<{{ .Prompt }}_{{ .Suffix }}>{{ else }}{{ range .Messages }}[{{ .Role }}:"
    "{{ .Content }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}]{{ end }}"
    "{{ .Tools }}{{ end }}"
)
TURN = [{"role": "user", "content": "Hi"}]


async def post(daemon: Daemon, path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "stream": False, "options": {"num_predict": 4}, **fields}
    async with daemon.http.post(path, json=body) as response:
        return response.status, await response.json()


async def rendered(daemon: Daemon, path: str, **fields: Any) -> str:
    status, answer = await post(daemon, path, _debug_render_only=True, **fields)
    assert status == 200, answer
    return str(answer["_debug_info"]["rendered_template"])


@pytest.mark.contract("generate.template", "generate.suffix", "templates.choice")
async def test_chat_and_generate_use_the_templates_of_the_model(tmp_path: Path) -> None:
    weights = write_llama(tmp_path / "tiny.gguf")
    OllamaStore(tmp_path / "models").add("tiny", weights=weights, template=GO)
    async with running(tmp_path, SPECD_DEMO="0") as daemon:
        assert await rendered(daemon, "/api/chat", messages=TURN) == "[user:Hi]null"
        assert await rendered(daemon, "/api/generate", prompt="Hi", system="S") == (
            "[system:S][user:Hi]null"
        )
        assert await rendered(daemon, "/api/generate", prompt="a", suffix="b") == "<a_b>"
        own = {"prompt": "Hi", "template": "{{ .Prompt }}!"}
        assert await rendered(daemon, "/api/generate", **own) == "Hi!"
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        assert await rendered(daemon, "/api/chat", messages=TURN, tools=[tool]) == (
            '[user:Hi][{"type":"function","function":{"name":"f","description":"",'
            '"parameters":{"type":"object","properties":null}}}]'
        )
        status, answer = await post(daemon, "/api/generate", prompt="Hi", template="{{ .Prompt")
        assert (status, answer) == (500, {"error": "template: :1: unclosed action"})
        status, answer = await post(daemon, "/api/chat", messages=TURN)
        assert (status, answer["eval_count"]) == (200, 4)
        _, shown = await post(daemon, "/api/show")
        assert (shown["template"], shown["capabilities"]) == (GO, ["completion", "tools", "insert"])
    async with running(tmp_path, SPECD_DEMO="0", OLLAMA_GO_TEMPLATE="0") as daemon:
        assert await rendered(daemon, "/api/chat", messages=TURN) != "[user:Hi]null"
