"""Capabilities of a model, from its metadata and its template."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from specd.core import Templating
from specd.store.gguf import GgufHeader, Value
from specd.store.gguf_metadata import GgufMetadata, format_count, has_audio_encoder
from specd.store.manifest import Config
from specd.store.templating import capabilities

FACTS = GgufMetadata(
    architecture="llama",
    n_ctx_train=0,
    n_embd=0,
    n_parameters=0,
    file_type="",
    chat_template=None,
    bos_token="",
    eos_token="",
    has_pooling=False,
    has_vision=False,
    has_audio=False,
)
GO = (
    "{{- if .Tools }}{{ end }}"
    "{{ range $i, $m := .Messages }}{{ if .Thinking }}<t>{{ .Thinking }}</t>{{ end }}{{ end }}"
)


@pytest.mark.contract("show.capabilities")
@pytest.mark.parametrize(
    "changes,go,projector,expected",
    [
        ({}, None, False, ["completion"]),
        ({"has_pooling": True}, None, False, ["embedding"]),
        ({"has_vision": True, "has_audio": True}, None, False, ["completion", "vision", "audio"]),
        ({}, None, True, ["completion", "vision"]),
        ({"chat_template": "{% if tools %}"}, None, False, ["completion", "tools"]),
        ({"chat_template": "<think></think>"}, None, False, ["completion", "thinking"]),
        ({"chat_template": "<think>"}, GO, False, ["completion"]),
        ({}, GO, False, ["completion", "tools", "thinking"]),
        ({"chat_template": "x"}, "{{ .Suffix }}", False, ["completion", "insert"]),
        ({"infill": ("a", "b", "c")}, None, False, ["completion", "insert"]),
        ({"architecture": "gptoss"}, None, False, ["completion", "thinking"]),
    ],
)
def test_capabilities_follow_the_contract(
    changes: dict[str, object], go: str | None, projector: bool, expected: list[str]
) -> None:
    facts = dataclasses.replace(FACTS, **changes)  # type: ignore[arg-type]
    chosen = Templating.GO if go and not facts.chat_template else Templating.JINJA
    found = capabilities(facts, Config(), go_template=go, chosen=chosen, has_projector=projector)
    assert list(found) == expected


@pytest.mark.contract("show.capabilities")
def test_the_configs_own_capabilities_are_added_once() -> None:
    config = Config(model_family="gptoss", capabilities=["completion", "image"])
    found = capabilities(
        FACTS, config, go_template=None, chosen=Templating.JINJA, has_projector=False
    )
    assert found == ("completion", "thinking", "image")


@pytest.mark.contract("show.capabilities")
@pytest.mark.parametrize(
    "values, has_sound",
    [
        ({}, False),
        ({"clip.has_audio_encoder": False}, False),
        ({"clip.has_audio_encoder": "yes"}, False),
        ({"clip.has_audio_encoder": True}, True),
        ({"clip.has_audio_encoder": True, "clip.vision.projector_type": "gemma4v"}, True),
        ({"clip.has_audio_encoder": True, "clip.vision.projector_type": "gemma3nv"}, False),
    ],
)
def test_a_projector_with_an_audio_encoder_adds_audio(
    values: dict[str, Value], has_sound: bool
) -> None:
    header = GgufHeader(Path("mmproj.gguf"), values, ())
    assert has_audio_encoder(header) is has_sound
    config, chosen = Config(), Templating.JINJA
    found = capabilities(
        FACTS, config, go_template=None, chosen=chosen, has_projector=True, has_sound=has_sound
    )
    assert ("audio" in found) is has_sound


@pytest.mark.contract("show.capabilities")
def test_the_harmony_parser_adds_thinking() -> None:
    config, chosen = Config(parser="harmony"), Templating.JINJA
    found = capabilities(FACTS, config, go_template=None, chosen=chosen, has_projector=False)
    assert found == ("completion", "thinking")


@pytest.mark.parametrize(
    "n,text",
    [(999, "999"), (37_120, "37.12K"), (751_630_000, "751.63M"), (8_030_261_248, "8.0B")],
)
def test_parameter_counts_have_ollamas_format(n: int, text: str) -> None:
    assert format_count(n) == text
