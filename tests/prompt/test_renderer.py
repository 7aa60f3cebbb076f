"""Limits of untrusted chat templates, and errors above them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.core import Message, ToolCall
from specd.errors import InvalidRequest, StoreError, WorkerDied
from specd.prompt import renderer as rendering
from specd.prompt.renderer import MAX_TEMPLATE_CHARACTERS, Job, Renderer, Result, render_job

HI = (Message(role="user", content="Hi"),)
LOUD = "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}"


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()


def test_a_prompt_is_rendered_in_a_worker_process(renderer: Renderer) -> None:
    call = ToolCall(name="f", arguments={"b": [1.5, None], "a": "ü"}, id="1")
    job = Job(
        template="{{ bos_token }}{{ messages[1].tool_calls[0].function.arguments | tojson }}"
        "{{ tools | tojson }}{{ reasoning_effort }}{{ messages[0].content }}",
        messages=(*HI, Message(role="assistant", tool_calls=(call,))),
        tools=({"type": "function", "function": {"name": "f"}},),
        bos_token="<s>",
        think="high",
    )
    expected = (
        '<s>{"b": [1.5, null], "a": "ü"}[{"type": "function", "function": {"name": "f"}}]highHi'
    )
    assert renderer.render(job) == expected
    assert render_job(job) == Result(text=expected)


def test_integers_of_any_size_are_rendered(renderer: Renderer) -> None:
    job = Job(
        template="{{ tools[0].n }} {{ messages[0].tool_calls[0].function.arguments.n }}",
        messages=(
            Message(role="assistant", tool_calls=(ToolCall(name="f", arguments={"n": 2**70}),)),
        ),
        tools=({"n": -(2**64)},),
    )
    assert renderer.render(job) == f"{-(2**64)} {2**70}"


words = st.text(st.characters(), max_size=8)
messages = st.builds(
    Message,
    role=words,
    content=words,
    thinking=words,
    tool_name=words,
    tool_call_id=words,
    tool_calls=st.tuples(
        st.builds(
            ToolCall,
            name=words,
            arguments=st.dictionaries(words, st.none() | st.integers() | words),
            id=words,
            index=st.integers(),
        )
    ),
)


@given(st.tuples(messages, messages), words, st.sampled_from([None, True, False, "high"]))
def test_a_job_survives_encoding(
    sent: tuple[Message, ...], word: str, think: bool | str | None
) -> None:
    job = Job(template=word, messages=sent, tools=({"a": word},), eos_token=word, think=think)
    assert Job.decode(job.encode()) == job


@pytest.mark.parametrize(
    "template, error, said",
    [
        ("{{ raise_exception('no system here') }}", InvalidRequest, "no system here"),
        ("{% for %}", StoreError, "damaged"),
        ("{{ 'x' * 5000000000 }}", InvalidRequest, "memory"),
        ("{{ '%1000000000d' % 5 }}", InvalidRequest, "memory|too long"),
        ("{{ 'x'.center(100000000) }}", InvalidRequest, "memory|too long"),
    ],
)
def test_errors_in_the_worker_are_raised(
    renderer: Renderer, template: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        renderer.render(Job(template=template, messages=HI))
    assert renderer.render(Job(template=LOUD, messages=HI)) == "[HI]"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",
    ],
)
def test_an_endless_template_is_stopped(
    renderer: Renderer, template: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor() as others:
        waiting = others.submit(renderer.render, Job(template=template, messages=HI))
        assert renderer.render(Job(template=LOUD, messages=HI)) == "[HI]"
        with pytest.raises(InvalidRequest, match="too long"):
            waiting.result()
    assert "specd.prompt ended by SIGPROF" in caplog.text
    assert renderer.render(Job(template=LOUD, messages=HI)) == "[HI]"


def test_dying_workers_raise_worker_died(renderer: Renderer) -> None:
    renderer.workers.command = (sys.executable, "-c", "import os; os.abort()")
    with pytest.raises(WorkerDied, match=r"^chat template: the server.s worker process .* SIGABRT"):
        renderer.render(Job(template=LOUD, messages=HI))


def test_a_result_too_large_for_memory_is_an_invalid_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(result: Result) -> bytes:
        if not result.failed:
            raise MemoryError
        return b"refused"

    monkeypatch.setattr(Result, "encode", encode)
    assert rendering.answer(Job(template=LOUD, messages=HI).encode()) == b"refused"


def test_a_prompt_longer_than_any_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MAX_PROMPT_BYTES", 3)
    assert render_job(Job(template=LOUD, messages=HI)).failed


def test_a_template_above_the_length_limit_is_damaged(renderer: Renderer) -> None:
    with pytest.raises(StoreError, match="more than 1048576 characters"):
        renderer.render(Job(template="x" * (MAX_TEMPLATE_CHARACTERS + 1), messages=HI))
