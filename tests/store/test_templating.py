"""Which template wins, and what each is able to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.core import Templating
from specd.store import Library
from specd.store.manifest import Config
from specd.store.templating import choose_templating, go_capabilities, jinja_capabilities
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
        # Jinja can more, and Go has no round trip to lose.
        (TOOLS_JINJA, PLAIN_GO, JINJA),
        (THINKING_JINJA, TOOLS_GO, JINJA),
        (THINKING_JINJA, THINKING_GO, JINJA),
        # Go has a round trip, which Jinja must have too.
        (THINKING_JINJA, ROUND_GO, GO),
        (FULL_JINJA, ROUND_GO, JINJA),
        # Both can the same.
        (TOOLS_JINJA, TOOLS_GO, GO),
        (ROUND_JINJA, TOOLS_GO, JINJA),
        (ROUND_JINJA, ROUND_GO, GO),
        ("<think></think>", THINKING_GO, GO),
        # As many, but others.
        (TOOLS_JINJA, THINKING_GO, GO),
        (TOOLS_JINJA, PLAIN_GO + "{{ .Suffix }}", GO),
        # One that is damaged can nothing.
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
def test_the_setting_decides_where_there_is_a_choice(jinja: str, go: str) -> None:
    assert chosen(jinja, go, prefer_go=True) is GO
    assert chosen(jinja, go, prefer_go=False) is JINJA
    assert chosen(None, go, prefer_go=False) is GO
    assert chosen(jinja, None, prefer_go=True) is JINJA


@pytest.mark.contract("templates.renderers")
@pytest.mark.parametrize("config", [Config(renderer="qwen3-coder"), Config(parser="qwen3")])
def test_a_model_with_a_renderer_is_served_by_its_own_jinja(config: Config) -> None:
    assert chosen(PLAIN_JINJA, ROUND_GO, prefer_go=True, config=config) is JINJA
    assert chosen(None, ROUND_GO, config=config) is GO


def test_the_bare_prompt_beside_a_renderer_is_no_template() -> None:
    assert chosen(None, "{{ .Prompt }}", config=Config(renderer="qwen3-coder")) is JINJA
    assert chosen(None, "{{ .Prompt }}") is GO


@pytest.mark.contract("templates.harmony")
@pytest.mark.parametrize(
    "config,architecture", [(Config(model_family="gptoss"), "x"), (Config(), "gpt-oss")]
)
def test_gpt_oss_keeps_its_go_template_of_channels(config: Config, architecture: str) -> None:
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
def test_what_a_jinja_template_can(text: str, found: tuple[str, ...]) -> None:
    assert jinja_capabilities(text) == found


def test_what_a_go_template_can() -> None:
    assert go_capabilities(TOOLS_GO + THINKING_GO + "{{ .Suffix }}") == (
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
def test_what_is_shown_is_what_is_used(
    tmp_path: Path, prefer_go: bool | None, template: str, can: tuple[str, ...]
) -> None:
    store = OllamaStore(tmp_path / "models")
    store.add("tiny", weights=write_llama(tmp_path / "a.gguf"), template=ROUND_GO)
    library = Library(store.root, demo=False, go_template=prefer_go)
    shown, model = library.show("tiny"), library.resolve("tiny")
    assert (shown.template, shown.summary.capabilities) == (template, can)
    assert model.templating is (JINJA if template == CHAT_TEMPLATE else GO)
    assert model.capabilities == can
    # The Modelfile makes the model again, whatever is preferred today.
    assert f"TEMPLATE {ROUND_GO}" in shown.modelfile


def test_a_modelfile_leaves_the_ggufs_own_template_to_the_gguf(tmp_path: Path) -> None:
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
def test_a_gguf_may_name_its_tokens_of_infill(
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
