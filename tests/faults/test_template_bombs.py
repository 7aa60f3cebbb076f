"""Chat templates that use unlimited time or memory: only their own prompt fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specd.core import Message
from specd.errors import SpecdError
from specd.prompt.renderer import MAX_PROMPT_BYTES, Job, Renderer

pytestmark = pytest.mark.system
MESSAGES = tuple(Message(role=role, content="Hi") for role in ("system", "user"))
BOMBS = (
    "{{ 'x' * 2 ** 40 }}",
    "{{ ('x' * 2 ** 28) * 8 }}",
    (
        "{% set ns = namespace(a='x') %}{% for _ in range(60) %}{% set ns.a = ns.a + ns.a %}"
        "{% endfor %}{{ ns.a }}"
    ),
    (
        "{% set ns = namespace(a=[1]) %}{% for _ in range(60) %}{% set ns.a = ns.a + ns.a %}"
        "{% endfor %}{{ ns.a|length }}"
    ),
    "{{ range(10 ** 9)|list|length }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ [1]|tojson(indent=999999999) }}",
    "{{ 'x'|indent(width=999999999) }}",
    "{{ 'ab'|replace('', 'x' * 9999999) }}",
    "{{ ('a b ' * 999999)|wordwrap(1)|length }}",
    "{{ lipsum(n=9999) }}",
    "{{ 7 ** 7 ** 7 ** 7 }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}",
    (
        "{{ ('a' * 30 + '!')|urlize|length }}{% for _ in range(10 ** 5) %}"
        "{{ ('www.' * 999)|urlize|length }}{% endfor %}"
    ),
    "{{ strftime_now('%Y' * 9999999) }}",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "{{ " + "-" * 5000 + "1 }}",
    "{{ [" + "[" * 900 + "]" * 900 + "] }}",
    "{{ 1" + " + 1" * 5000 + " }}",
    "{% set a = b %}" * 20000,
)


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()


def asked(renderer: Renderer, template: str) -> str:
    """Return the prompt, or the error message."""
    try:
        return renderer.render(Job(template=template, messages=MESSAGES))
    except SpecdError as error:
        return str(error)


@pytest.mark.parametrize("template", BOMBS, ids=range(len(BOMBS)))
def test_a_template_bomb_fails_only_its_own_prompt(renderer: Renderer, template: str) -> None:
    answer = asked(renderer, template)
    assert len(answer) <= MAX_PROMPT_BYTES
    assert asked(renderer, "{{ messages|length }}") == "2"
