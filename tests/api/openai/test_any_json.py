"""Any JSON is converted to a request or refused with InvalidRequest."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specd.api.body import decode_body
from specd.api.openai import chat_body, completions
from specd.api.openai.responses.body import ResponsesBody
from specd.api.openai.responses.route import to_prompt, to_request
from specd.api.openai.responses.writer import ResponseWriter
from specd.core import ChatPrompt
from specd.errors import InvalidRequest
from tests.api.fakes import DONE, model_ref

_WORDS = (
    "type role content text input_text output_text image_url input_image input_audio data message"
    " function_call function_call_output reasoning call_id name arguments output summary tool"
    " encrypted_content tool_calls tool_call_id function id index user assistant system developer"
    " format schema json_schema json_object namespace tools parameters effort {} [] null"
    " data:;base64,AAAA"
)
WORD = st.sampled_from(_WORDS.split())
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just(0.5) | st.just("") | WORD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORD, inner, max_size=5),
    max_leaves=12,
)
REF = model_ref("able", "completion", "tools")


def a_body(*fields: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(fields), JSON, max_size=len(fields))


@given(a_body("messages", "response_format", "tools", "stop", "reasoning", "max_completion_tokens"))
def test_chats(sent: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        body = decode_body(sent, chat_body.ChatBody)
        prompt = ChatPrompt(messages=chat_body.to_messages(body.messages))
        chat_body.chat_request(body, REF, prompt, None)


@given(a_body("prompt", "stop", "stream_options", "logprobs", "temperature"))
def test_completions(sent: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        body = decode_body(sent, completions.CompletionBody)
        completions.to_options(body)


@given(a_body("input", "text", "tools", "reasoning", "tool_choice", "previous_response_id"))
def test_responses(sent: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        body = decode_body(sent, ResponsesBody)
        to_request(body, REF, to_prompt(body), None)
        ResponseWriter(body=body, number=1, now=lambda: 0).last(DONE)
