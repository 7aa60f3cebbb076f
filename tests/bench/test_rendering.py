"""One prompt for every model, in the model's own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from specd.bench.rendering import Renderer
from specd.bench.subject import demo_subject
from specd.bench.workload import Form, Prompt
from specd.errors import InvalidRequest
from tests.gguf_files import write_llama

PROMPT = Prompt("Count.", begins="1, 2")
TEMPLATE = "{{ bos_token }}[{{ messages[0].role }}] {{ messages[0].content }} [answer]"


def test_raw_text_is_never_put_into_a_template() -> None:
    assert Renderer(chat_template=TEMPLATE).render(Form.RAW, PROMPT) == "Count.1, 2"


def test_without_a_template_the_turns_are_written_out() -> None:
    assert Renderer().render(Form.CHAT, PROMPT) == "User: Count.\n\nAssistant: 1, 2"


def test_the_template_brings_no_second_bos() -> None:
    renderer = Renderer(chat_template=TEMPLATE, bos_token="<s>")
    assert renderer.render(Form.CHAT, PROMPT) == "[user] Count. [answer]1, 2"


def test_a_bos_that_the_vocabulary_does_not_add_stays() -> None:
    renderer = Renderer(chat_template=TEMPLATE, bos_token="<s>", adds_bos=False)
    assert renderer.render(Form.CHAT, PROMPT) == "<s>[user] Count. [answer]1, 2"


def test_a_template_that_refuses_says_why() -> None:
    renderer = Renderer(chat_template="{{ raise_exception('no') }}")
    with pytest.raises(InvalidRequest, match="no"):
        renderer.render(Form.CHAT, PROMPT)


def test_a_file_says_which_template_it_has() -> None:
    rendered = Renderer.of(demo_subject().target).render(Form.CHAT, PROMPT)
    assert rendered == "<|user|>Count.<|end|><|assistant|>1, 2"


def test_a_file_without_one_is_asked_in_plain_words(tmp_path: Path) -> None:
    assert Renderer.of(write_llama(tmp_path / "a.gguf", chat_template=None)).chat_template is None
