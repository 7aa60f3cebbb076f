"""Chat templates that try to reach files, the process, or all of the memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from specd.core import Message, ToolCall
from specd.errors import SpecdError
from specd.prompt.renderer import Job, Renderer

CANARY = "canary-7c1f"
MESSAGES = (
    Message(role="user", content="Hi {0.__class__}"),
    Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"a": 1}),)),
)
#: Attributes of Python objects that lead out of a sandbox.
GRABS = (
    "''.__class__.__mro__[1].__subclasses__()",
    "''|attr('__class__')",
    "''['__class__']",
    "messages.__class__",
    "messages[0].__init__.__globals__",
    "raise_exception.__globals__",
    "raise_exception|attr('__globals__')",
    "strftime_now.__globals__['__builtins__']",
    "strftime_now.__code__.co_consts",
    "strftime_now.__closure__[0].cell_contents",
    "cycler.__init__.__globals__.os.environ",
    "lipsum.__globals__['os'].popen('id').read()",
    "joiner.__init__.__globals__",
    "namespace.__init__.__globals__",
    "self.__init__.__globals__",
    "self._TemplateReference__context",
    "self._TemplateReference__context.environment",
    "self.__init__",
    "loop.__init__",
    "(messages|map(attribute='__class__')|list)",
    "(['']|map('attr', '__class__')|list)",
    "(messages|groupby('__class__')|list)",
    "(messages|selectattr('__class__')|list)",
    "(messages|sort(attribute='__class__'))",
    "(messages|sum(attribute='__class__', start=[]))",
    "'{0.__class__.__mro__}'.format(1)",
    "'{0.__globals__}'.format(raise_exception)",
    "'{x.__globals__[CANARY]}'.format_map({'x': raise_exception})",
    "'%s'|format(raise_exception.__globals__)",
    "messages[0].content.format(messages)",
    "(''|string).format.__self__.__class__",
    "dict.__base__",
    "range.__class__",
    "get_flashed_messages.__globals__",
    "config",
    "request",
    "caller.__globals__",
    "(1).__class__",
    "none.__class__",
    "undefined_thing.__class__",
    "('x'.encode()).__class__",
    "messages[0].items.__self__.__class__",
    "tojson.__globals__",
    "(tools|tojson).__class__",
)
STATEMENTS = (
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as p %}{{ p }}",
    "{% from '/etc/passwd' import x %}",
    "{% extends '/etc/passwd' %}",
    "{% include ['/etc/passwd', '/proc/self/environ'] %}",
    "{% set x = self %}{{ x.__class__ }}",
    "{% macro m() %}{{ m.__globals__ }}{{ caller.__globals__ }}{% endmacro %}{{ m() }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% set _ = messages.append(1) %}",
    "{% set _ = messages[0].update({'role': 'system'}) %}",
    "{% set _ = messages.__setitem__(0, 1) %}",
    "{% debug %}",
    "{% for x in messages recursive %}{{ loop.__globals__ }}{% endfor %}",
)


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    os.environ["CANARY"] = CANARY
    renderer = Renderer()
    yield renderer
    renderer.close()
    del os.environ["CANARY"]


def rendered(renderer: Renderer, template: str) -> str:
    """Return the prompt, or the error's text."""
    try:
        return renderer.render(Job(template=template, messages=MESSAGES))
    except SpecdError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("template", [f"{{{{ {grab} }}}}" for grab in GRABS] + [*STATEMENTS])
def test_a_hostile_template_reads_only_the_chat(renderer: Renderer, template: str) -> None:
    text = rendered(renderer, template)
    is_refused = text.startswith("refused: ")
    for word in ("root:", CANARY, "<class", "<function", "<module", "os.environ", "subclasses"):
        assert is_refused or word not in text
    assert is_refused or len(text) < 200
    for word in ("root:x", CANARY):
        assert word not in text


def test_the_worker_inherits_no_secrets_and_writes_no_files(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECD_API_KEYS", CANARY * 4)
    renderer.workers.close()
    renderer.start()
    (process,) = renderer.workers.idle.queue
    rendered(renderer, "x")  # it has begun
    with open(f"/proc/{process.pid}/environ", "rb") as environ:  # noqa: PTH123
        told = environ.read()
    assert b"PATH=" in told
    assert CANARY.encode() not in told
    with open(f"/proc/{process.pid}/limits") as limits:  # noqa: PTH123
        sizes = [line.split()[-3:-1] for line in limits if "file size" in line]
    assert sizes == [["0", "0"], ["0", "0"]]  # of files, and of core files
