"""Test that prompts are rendered with each model's template."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.bench.subject import demo_subject
from specd.bench.workload import Form, Prompt, Renderer
from specd.errors import InvalidRequest
from tests.gguf_files import write_llama

PROMPT = Prompt("Count.", begins="1, 2")
TEMPLATE = "{{ bos_token }}[{{ messages[0].role }}] {{ messages[0].content }} [answer]"


def test_raw_text_is_never_put_into_a_template() -> None:
    assert Renderer(chat_template=TEMPLATE).render(Form.RAW, PROMPT) == "Count.1, 2"


def test_without_a_template_the_turns_are_written_out() -> None:
    assert Renderer().render(Form.CHAT, PROMPT) == "User: Count.\n\nAssistant: 1, 2"


def test_the_template_adds_no_second_bos_token() -> None:
    renderer = Renderer(chat_template=TEMPLATE, bos_token="<s>")
    assert renderer.render(Form.CHAT, PROMPT) == "[user] Count. [answer]1, 2"


def test_a_bos_token_that_the_tokenizer_does_not_add_stays_in_the_prompt() -> None:
    renderer = Renderer(chat_template=TEMPLATE, bos_token="<s>", adds_bos=False)
    assert renderer.render(Form.CHAT, PROMPT) == "<s>[user] Count. [answer]1, 2"


def test_a_refusing_template_gives_its_reason() -> None:
    renderer = Renderer(chat_template="{{ raise_exception('no') }}")
    with pytest.raises(InvalidRequest, match="no"):
        renderer.render(Form.CHAT, PROMPT)


def test_the_template_is_read_from_the_file() -> None:
    rendered = Renderer.of(demo_subject().target).render(Form.CHAT, PROMPT)
    assert rendered == "<|user|>Count.<|end|><|assistant|>1, 2"


def test_a_file_without_a_template_gets_a_plain_dialogue(tmp_path: Path) -> None:
    assert Renderer.of(write_llama(tmp_path / "a.gguf", chat_template=None)).chat_template is None
