"""Modelfiles: the meaning of each line, and the errors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import options
from specd.cli.create_body import create_request, read_parameter
from specd.cli.modelfile import Command, decode, parse
from specd.errors import InvalidRequest
from specd.options import TYPES

pytestmark = pytest.mark.contract("modelfile.grammar")

WHOLE = '''# a comment
from ./a model.gguf
  # another one
PARAMETER temperature 0.5
Parameter stop <|end|>
parameter stop "\tAI:"
SYSTEM """
You are "brief".
Always.
"""
TEMPLATE "{{ .Prompt }}"
MESSAGE user Hello there
message assistant """Hi
you"""
LICENSE one
LICENSE 'two'
ADAPTER lora.gguf
DRAFT small.gguf
RENDERER r
PARSER p
REQUIRES v0.14.0
'''


def test_every_command_is_parsed() -> None:
    assert parse(WHOLE) == [
        Command("from", "./a model.gguf"),
        Command("parameter", "0.5", "temperature"),
        Command("parameter", "<|end|>", "stop"),
        Command("parameter", "\tAI:", "stop"),
        Command("system", '\nYou are "brief".\nAlways.\n'),
        Command("template", "{{ .Prompt }}"),
        Command("message", "Hello there", "user"),
        Command("message", "Hi\nyou", "assistant"),
        Command("license", "one"),
        Command("license", "'two'"),
        Command("adapter", "lora.gguf"),
        Command("draft", "small.gguf"),
        Command("renderer", "r"),
        Command("parser", "p"),
        Command("requires", "v0.14.0"),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_encodings_and_line_ends(encoding: str, line_end: str) -> None:
    data = f"FROM x{line_end}SYSTEM Grüße{line_end}".encode(encoding)
    assert parse(decode(data)) == [Command("from", "x"), Command("system", "Grüße")]


def test_unprintable_characters_are_dropped() -> None:
    assert parse("FROM a\x00b\u200bc") == [Command("from", "abc")]


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "Modelfile: no FROM line"),
        ("SYSTEM x", "Modelfile: no FROM line"),
        ("FROM x\nBOGUS y", "Modelfile:2: command must be one of"),
        ("FROM x\nSYSTEM", "Modelfile:2: unexpected EOF: SYSTEM has no value"),
        ("FROM:x", "Modelfile:1: command must be one of"),
        (
            'FROM x\n\nSYSTEM """never\nclosed',
            "Modelfile:3: unexpected EOF: the quotes that SYSTEM opens",
        ),
        ('FROM x\nSYSTEM "closed" but not at the end', "Modelfile:2: unexpected EOF: the quotes"),
        ("FROM x\nMESSAGE tool y", 'Modelfile:2: message role must be one of "system", "user"'),
        ("FROM x\nPARAMETER temperature", "Modelfile:2: unexpected EOF: PARAMETER has no value"),
    ],
)
def test_an_invalid_modelfile_is_an_error(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(text)
    assert str(caught.value).startswith(said)


@given(st.text())
def test_any_text_gives_commands_or_an_error(text: str) -> None:
    with suppress(InvalidRequest):
        assert any(command.name == "from" for command in parse(text))


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"], exclude_characters='"')))
def test_quoted_text_is_unchanged(text: str) -> None:
    assert parse(f'FROM x\nSYSTEM """{text}"""')[1] == Command("system", text)


# --------------------------------------------------------------------- as a request


@pytest.mark.contract("modelfile.paths")
def test_paths_are_uploads_and_names_are_models(tmp_path: Path) -> None:
    for name in ("a model.gguf", "lora.gguf", "small.gguf"):
        (tmp_path / name).touch()
    made = create_request(parse(WHOLE), tmp_path)
    assert made.files == {
        "files": {"a model.gguf": tmp_path / "a model.gguf"},
        "adapters": {"lora.gguf": tmp_path / "lora.gguf"},
        "draft_files": {"small.gguf": tmp_path / "small.gguf"},
    }
    assert made.fields == {
        "parameters": {"temperature": 0.5, "stop": ["<|end|>", "\tAI:"]},
        "system": '\nYou are "brief".\nAlways.\n',
        "template": "{{ .Prompt }}",
        "messages": [
            {"role": "user", "content": "Hello there"},
            {"role": "assistant", "content": "Hi\nyou"},
        ],
        "license": ["one", "'two'"],
        "renderer": "r",
        "parser": "p",
        "requires": "0.14.0",
    }
    assert create_request(parse("FROM llama3.2:1b"), tmp_path).fields == {"from": "llama3.2:1b"}


@pytest.mark.contract("modelfile.paths")
def test_a_folder_stands_for_all_its_weights(tmp_path: Path) -> None:
    for name in ("mmproj.gguf", "model.gguf", "notes.txt"):
        (tmp_path / name).touch()
    made = create_request(parse(f"FROM {tmp_path}"), Path("/"))
    assert list(made.files["files"]) == ["mmproj.gguf", "model.gguf"]


@pytest.mark.contract("modelfile.parameters")
@pytest.mark.parametrize(
    "line, said",
    [
        ("PARAMETER warmth 1", "unknown parameter 'warmth'"),
        ("PARAMETER num_ctx many", "invalid int value [many]"),
        ("PARAMETER temperature hot", "invalid float value [hot]"),
        ("PARAMETER use_mmap maybe", "invalid bool value [maybe]"),
        ("FROM ./nowhere", "no such file: ./nowhere"),
        ("FROM nowhere.gguf", "no such file: nowhere.gguf"),
        ("FROM ~nobody-of-this-name/x", "no such file: ~nobody-of-this-name/x"),
        ("ADAPTER nowhere.gguf", "no such file: nowhere.gguf"),
        ("DRAFT llama3.2:1b", "no such file: llama3.2:1b"),
    ],
)
def test_invalid_commands_are_refused(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_request(parse(f"FROM x\n{line}"), tmp_path)
    assert str(caught.value) == f"Modelfile:2: {said}"


@pytest.mark.contract("modelfile.parameters")
def test_deprecated_parameters_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = create_request(parse("FROM x\nPARAMETER mirostat 1\nPARAMETER top_k 5"), tmp_path)
    assert made.fields["parameters"] == {"top_k": 5}
    assert "mirostat is deprecated" in caplog.text


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_option_is_a_parameter(name: str) -> None:
    text = {int: "7", float: "0.5", bool: "true", tuple: "x"}[TYPES[name]]
    value = read_parameter(name, text)
    options.parse({name: [value] if name == "stop" else value})
