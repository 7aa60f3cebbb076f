"""The choice of a model's template, and the template's variables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specd.core import LocalModel, Message, Templating, TextPrompt
from specd.errors import Unsupported
from specd.prompt import chat_prompt, text_prompt

JINJA = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ reasoning_effort }}"
GO = "{{ range .Messages }}[{{ .Role }}:{{ .Content }}]{{ end }}{{ .Think }}{{ .ThinkLevel }}"
MODEL = LocalModel(
    name="user/m:1",
    full_name="registry.ollama.ai/user/m:1",
    digest="0",
    weights=Path("w"),
    chat_template=JINJA,
    go_template=GO,
    system="Be brief.",
    messages=(Message(role="user", content="1"), Message(role="assistant", content="2")),
)
BY_GO = replace(MODEL, templating=Templating.GO)
HI = Message(role="user", content="Hi")


@pytest.mark.contract("chat.no-template", "templates.go-served")
def test_a_chat_is_rendered_with_the_effective_template() -> None:
    assert chat_prompt(MODEL, [HI]) == "<user>Hi"
    assert chat_prompt(BY_GO, [HI]) == "[user:Hi]false"
    bare = replace(MODEL, chat_template=None, go_template=None)
    assert chat_prompt(bare, [HI]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.contract("generate.system", "generate.modelfile")
def test_a_text_follows_the_models_own_messages() -> None:
    text = TextPrompt(text="Hi")
    assert text_prompt(MODEL, text) == "<system>Be brief.<user>1<assistant>2<user>Hi"
    assert text_prompt(BY_GO, text) == "[system:Be brief.][user:1][assistant:2][user:Hi]false"
    assert text_prompt(BY_GO, replace(text, system="")) == "[user:1][assistant:2][user:Hi]false"
    assert text_prompt(BY_GO, replace(text, system="S", context=(1,))) == "[system:S][user:Hi]false"


def test_raw_text_and_text_without_a_template_are_unchanged() -> None:
    assert text_prompt(BY_GO, TextPrompt(text="Hi", raw=True)) == "Hi"
    assert text_prompt(replace(MODEL, chat_template=None), TextPrompt(text="Hi")) == "Hi"


@pytest.mark.contract("generate.template")
def test_a_template_in_the_request_is_a_go_template() -> None:
    text = TextPrompt(text="Hi", template="{{ .System }}>{{ .Prompt }}|")
    assert text_prompt(MODEL, text) == "Be brief.>1|2>Hi|"


@pytest.mark.contract("generate.suffix")
def test_a_suffix_uses_the_go_template_or_the_infill_tokens() -> None:
    gap = TextPrompt(text="a", suffix="b", system="unused")
    infills = replace(MODEL, go_template="{{ .Prompt }}_{{ .Suffix }}{{ .System }}")
    assert text_prompt(infills, gap) == "a_b<no value>"
    own = replace(gap, template="{{ .Suffix }}{{ .Prompt }}")
    assert text_prompt(MODEL, own) == "ba"
    with pytest.raises(Unsupported, match=r"^registry.ollama.ai/user/m:1 does not support insert$"):
        text_prompt(MODEL, gap)
    by_tokens = replace(MODEL, infill=("<pre>", "<suf>", "<mid>"))
    assert text_prompt(by_tokens, gap) == "<pre>a<suf>b<mid>"
    assert text_prompt(replace(infills, infill=by_tokens.infill), gap) == "a_b<no value>"


@pytest.mark.contract("think.go", "think.default-on")
def test_thinking_is_on_by_default_if_the_model_can_think() -> None:
    thinker = replace(BY_GO, capabilities=("completion", "thinking"))
    assert chat_prompt(thinker, [HI]) == "[user:Hi]truemedium"
    assert chat_prompt(thinker, [HI], think=False) == "[user:Hi]false"
    assert chat_prompt(thinker, [HI], think="max") == "[user:Hi]truemax"


@pytest.mark.contract("think.harmony")
@pytest.mark.parametrize("model", [MODEL, BY_GO])
def test_harmony_renders_max_effort_as_high(model: LocalModel) -> None:
    oss = replace(model, parser="harmony", capabilities=("completion", "thinking"))
    assert chat_prompt(oss, [HI], think="max").endswith("high")
    assert chat_prompt(oss, [HI], think="low").endswith("low")


def mark(number: int) -> str:
    return f"#{number}"


@pytest.mark.parametrize("model", [MODEL, BY_GO])
def test_image_markers_precede_the_text(model: LocalModel) -> None:
    messages = [Message(role="user", content="a", images=(b"1", b"2")), HI]
    text = chat_prompt(model, [messages[0], Message(role="assistant"), HI], image_marker=mark)
    assert "#0#1a" in text
    prompt = TextPrompt(text="a", images=(b"1",))
    assert text_prompt(model, prompt, image_marker=mark).count("#0a") == 1


@pytest.mark.contract("images.placed")
@pytest.mark.parametrize(
    "text, expected",
    [
        ("a", "#0#1a"),
        ("a [img] b [img] c", "a #0 b #1 c"),
        ("a [img] b", "#1a #0 b"),
        ("[img][img][img]", "#0#1[img]"),
        ("a [img-1] b [img-0]", "a #1 b #0"),
        ("a [img-1] b [img]", "a #1 b #0"),
        ("[img-0][img-0] [img-7]", "#1#0[img-0] [img-7]"),
    ],
)
def test_an_image_tag_places_the_marker(text: str, expected: str) -> None:
    prompt = TextPrompt(text=text, images=(b"1", b"2"), raw=True)
    assert text_prompt(MODEL, prompt, image_marker=mark) == expected
    for model in (MODEL, BY_GO):
        asked = replace(prompt, raw=False)
        assert expected in text_prompt(model, asked, image_marker=mark)
        turn = Message(role="user", content=text, images=(b"1", b"2"))
        assert expected in chat_prompt(model, [turn], image_marker=mark)


def test_an_image_tag_refers_to_images_of_its_own_message() -> None:
    turns = [
        Message(role="user", content="a [img]", images=(b"1",)),
        Message(role="assistant", content="[img] [img-0]"),
        Message(role="user", content="b [img-0] [img] [img-1]", images=(b"2",)),
    ]
    text = chat_prompt(MODEL, turns, image_marker=mark)
    for shown in ("a #0", "[img] [img-0]", "b [img-0] [img] #1"):
        assert shown in text


@pytest.mark.contract("chat.strip-thinking")
@pytest.mark.parametrize(
    "changes", [{"family": "qwen3"}, {"name": "deepseek-r1:8b"}, {"name": "u/deepseek-r1:x"}]
)
def test_thinking_in_earlier_answers_is_removed(changes: dict[str, str]) -> None:
    model = replace(BY_GO, **changes)  # type: ignore[arg-type]
    thought = Message(role="assistant", content="\n<think>hm</think>\n\nyes")
    half = Message(role="assistant", content="<think>hm")
    assert chat_prompt(model, [HI, thought, HI, half, HI]) == (
        "[user:Hi][assistant:yes][user:Hi][assistant:<think>hm][user:Hi]false"
    )
    assert "<think>hm</think>" in chat_prompt(model, [HI, thought])
    assert "<think>hm</think>" in chat_prompt(BY_GO, [HI, thought, HI])
