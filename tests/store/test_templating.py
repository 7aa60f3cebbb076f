"""The choice between two templates, and the capabilities of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.core import Templating
from specd.go_template import analysis
from specd.store import Library
from specd.store.manifest import Config
from specd.store.templating import choose_templating, jinja_capabilities
from tests.gguf_files import CHAT_TEMPLATE, OllamaStore, byte_vocabulary, write_llama

JINJA, GO = Templating.JINJA, Templating.GO

PLAIN_JINJA = "{{ messages[0].content }}"
TOOLS_JINJA = "{% if tools %}{{ tools }}{% endif %}"
ROUND_JINJA = TOOLS_JINJA + "{{ m.tool_calls }}{% if message.role == 'tool' %}{% endif %}"
THINKING_JINJA = TOOLS_JINJA + "<think></think>"
FULL_JINJA = ROUND_JINJA + "<think></think>"

PLAIN_GO = "{{ .System }}{{ .Prompt }}"
TOOLS_GO = "{{ .Tools }}{{ range .Messages }}{{ end }}"
ROUND_GO = (
    '{{ .Tools }}{{ range .Messages }}{{ .ToolCalls }}{{ if eq .Role "tool" }}{{ end }}{{ end }}'
)
THINKING_GO = "{{ range .Messages }}{{ if .Thinking }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}"


def chosen(
    jinja: str | None,
    go: str | None,
    prefer_go: bool | None = None,
    *,
    config: Config | None = None,
    architecture: str = "llama",
) -> Templating:
    return choose_templating(
        jinja, go, config or Config(), architecture=architecture, prefer_go=prefer_go
    )


@pytest.mark.contract("templates.choice")
@pytest.mark.parametrize(
    "jinja,go,winner",
    [
        (None, None, JINJA),
        (PLAIN_JINJA, None, JINJA),
        (None, PLAIN_GO, GO),
        (PLAIN_JINJA, PLAIN_GO, GO),
        # Jinja supports more, and Go has no round trip.
        (TOOLS_JINJA, PLAIN_GO, JINJA),
        (THINKING_JINJA, TOOLS_GO, JINJA),
        (THINKING_JINJA, THINKING_GO, JINJA),
        # Jinja must have a round trip, because Go has one.
        (THINKING_JINJA, ROUND_GO, GO),
        (FULL_JINJA, ROUND_GO, JINJA),
        # Both support the same.
        (TOOLS_JINJA, TOOLS_GO, GO),
        (ROUND_JINJA, TOOLS_GO, JINJA),
        (ROUND_JINJA, ROUND_GO, GO),
        ("<think></think>", THINKING_GO, GO),
        # The same number of capabilities, but different ones.
        (TOOLS_JINJA, THINKING_GO, GO),
        (TOOLS_JINJA, PLAIN_GO + "{{ .Suffix }}", GO),
        # A damaged template supports nothing.
        (TOOLS_JINJA, "{{ .Damaged", JINJA),
    ],
)
def test_go_wins_unless_jinja_is_better(
    jinja: str | None, go: str | None, winner: Templating
) -> None:
    assert chosen(jinja, go) is winner


@pytest.mark.contract("templates.choice")
@pytest.mark.parametrize("jinja", [PLAIN_JINJA, FULL_JINJA])
@pytest.mark.parametrize("go", [PLAIN_GO, ROUND_GO])
def test_the_setting_decides_between_two_templates(jinja: str, go: str) -> None:
    assert chosen(jinja, go, prefer_go=True) is GO
    assert chosen(jinja, go, prefer_go=False) is JINJA
    assert chosen(None, go, prefer_go=False) is GO
    assert chosen(jinja, None, prefer_go=True) is JINJA


@pytest.mark.contract("templates.renderers")
@pytest.mark.parametrize("config", [Config(renderer="qwen3-coder"), Config(parser="qwen3")])
def test_a_model_with_a_renderer_uses_its_jinja_template(config: Config) -> None:
    assert chosen(PLAIN_JINJA, ROUND_GO, prefer_go=True, config=config) is JINJA
    assert chosen(None, ROUND_GO, config=config) is GO


def test_the_default_template_beside_a_renderer_does_not_count() -> None:
    assert chosen(None, "{{ .Prompt }}", config=Config(renderer="qwen3-coder")) is JINJA
    assert chosen(None, "{{ .Prompt }}") is GO


@pytest.mark.contract("templates.harmony")
@pytest.mark.parametrize(
    "config,architecture", [(Config(model_family="gptoss"), "x"), (Config(), "gpt-oss")]
)
def test_gpt_oss_uses_its_go_template_with_channels(config: Config, architecture: str) -> None:
    harmony = "<|start|>{{ .Prompt }}<|end|>"
    for go, winner in ((harmony, GO), (PLAIN_GO, JINJA)):
        found = chosen(FULL_JINJA, go, prefer_go=False, config=config, architecture=architecture)
        assert found is winner


@pytest.mark.parametrize(
    "text,found",
    [
        ("{{ tools }}", ("tools",)),
        ("{{ tool_call }}", ("tools",)),
        ("<think> </think>", ("thinking",)),
        ("<think>", ()),
        ("{{ content.split('</think>')[-1] }}", ("thinking",)),
        ('{{ reasoning_content }}{{ content.split("</think>")[-1] }}', ()),
        (FULL_JINJA, ("tools", "thinking")),
        ("", ()),
    ],
)
def test_capabilities_of_a_jinja_template(text: str, found: tuple[str, ...]) -> None:
    assert jinja_capabilities(text) == found


def test_capabilities_of_a_go_template() -> None:
    assert analysis.capabilities(TOOLS_GO + THINKING_GO + "{{ .Suffix }}") == (
        "tools",
        "insert",
        "thinking",
    )


@pytest.mark.contract("show.template", "templates.choice")
@pytest.mark.parametrize(
    "prefer_go,template,can",
    [
        (None, ROUND_GO, ("completion", "tools")),
        (True, ROUND_GO, ("completion", "tools")),
        (False, CHAT_TEMPLATE, ("completion",)),
    ],
)
def test_show_prints_the_template_in_use(
    tmp_path: Path, prefer_go: bool | None, template: str, can: tuple[str, ...]
) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("tiny", weights=write_llama(tmp_path / "a.gguf"), template=ROUND_GO)
    library = Library(store.root, demo=False, go_template=prefer_go)
    shown, model = library.show("tiny"), library.resolve("tiny")
    assert (shown.template, shown.summary.capabilities) == (template, can)
    assert model.templating is (JINJA if template == CHAT_TEMPLATE else GO)
    assert model.capabilities == can
    # The Modelfile recreates the model, whatever the setting is.
    assert f"TEMPLATE {ROUND_GO}" in shown.modelfile


def test_a_modelfile_leaves_out_the_ggufs_own_template(tmp_path: Path) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("tiny", weights=write_llama(tmp_path / "a.gguf"))
    shown = Library(store.root, demo=False).show("tiny")
    assert shown.template == CHAT_TEMPLATE
    assert "TEMPLATE" not in shown.modelfile


@pytest.mark.parametrize(
    "keys,infill",
    [
        (("fim_pre", "fim_suf", "fim_mid"), ("<|begin|>", "<|end|>", "a")),
        (("prefix", "suffix", "middle"), ("<|begin|>", "<|end|>", "a")),
        (("fim_pre", "fim_suf"), None),
        ((), None),
    ],
)
def test_infill_tokens_come_from_the_gguf(
    tmp_path: Path, keys: tuple[str, ...], infill: tuple[str, str, str] | None
) -> None:
    texts = byte_vocabulary().tokens
    ids = [texts.index(text) for text in ("<|begin|>", "<|end|>", "a")]
    extra = {f"tokenizer.ggml.{key}_token_id": i for key, i in zip(keys, ids, strict=False)}
    store = OllamaStore(tmp_path / "models")
    store.add("tiny", weights=write_llama(tmp_path / "a.gguf", extra=extra))
    model = Library(store.root, demo=False).resolve("tiny")
    assert model.infill == infill
    assert ("insert" in model.capabilities) is (infill is not None)
