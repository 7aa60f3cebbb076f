"""Normalization of chats for templates that require an order."""

from __future__ import annotations

import sys

from specd.core import Message, ToolCall
from specd.prompt.message_order import link_tool_results, merge_messages, normalize_messages

F, G = ToolCall(name="f"), ToolCall(name="g", id="mine")


def calls(*found: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=found)


def result(content: str, **fields: str) -> Message:
    return Message(role="tool", content=content, **fields)  # type: ignore[arg-type]


def test_merged_messages_keep_calls_images_and_thinking() -> None:
    first = Message(role="assistant", content="a", thinking="x", images=(b"1",))
    second = Message(role="assistant", thinking="y", tool_calls=(F,), images=(b"2",))
    (message,) = merge_messages([first, second])
    assert (message.content, message.thinking) == ("a\n\n", "x\n\ny")
    assert (message.images, message.tool_calls) == ((b"1", b"2"), (F,))


def test_tool_results_are_not_merged() -> None:
    assert len(merge_messages([result("1"), result("2")])) == 2


def test_calls_without_an_id_get_one_and_results_find_their_calls() -> None:
    chat = link_tool_results(
        [calls(F, G), result("of g", tool_name="g"), result("of f"), calls(F), result("2")]
    )
    assert [call.id for turn in chat for call in turn.tool_calls] == [
        "call00001",
        "mine",
        "call00003",
    ]
    assert [(m.tool_call_id, m.tool_name) for m in chat if m.role == "tool"] == [
        ("mine", "g"),
        ("call00001", "f"),
        ("call00003", "f"),
    ]


def test_a_result_without_its_call_stays_as_it_is() -> None:
    strays = [result("1"), result("2", tool_call_id="other"), result("3", tool_name="h")]
    assert link_tool_results([*strays[:1], calls(G), *strays[1:]])[2:] == strays[1:]
    assert link_tool_results(strays) == strays


def test_results_of_repeated_ids_match_in_order() -> None:
    again = ToolCall(name="h", id="mine")
    chat = link_tool_results(
        [calls(G, again), result("1", tool_call_id="mine"), result("2", tool_call_id="mine")]
    )
    assert [m.tool_name for m in chat[1:]] == ["g", "h"]
    # A call that is matched by id is not matched by name again, and vice versa.
    chat = link_tool_results(
        [calls(G, G), result("1", tool_call_id="mine"), result("2"), result("3")]
    )
    assert [m.tool_name for m in chat[1:]] == ["g", "g", ""]


def test_linking_results_takes_linear_time() -> None:
    """The work is the number of function calls, including built-in ones."""

    def n_steps(n: int) -> int:
        # Results in reverse order, by id: each call is the last of the pending ones.
        asked = calls(*(ToolCall(name="f", id=f"c{i}") for i in range(n)))
        chat = [asked, *(result("", tool_call_id=f"c{i}") for i in reversed(range(n)))]
        seen: list[str] = []
        before = sys.getprofile()
        sys.setprofile(lambda _, event, __: seen.append(event))
        try:
            found = link_tool_results(chat)
        finally:
            sys.setprofile(before)
        assert [m.tool_call_id for m in found[1:]] == [f"c{i}" for i in reversed(range(n))]
        return len(seen)

    assert n_steps(800) < 5 * n_steps(200)


def test_normalizing_puts_one_system_message_first_and_renames_calls() -> None:
    system = Message(role="system", content="s")
    user = Message(role="user", content="u")
    chat = [user, user, system, calls(G), result("1", tool_call_id="mine"), system]
    assert normalize_messages(chat) == [
        Message(role="system", content="s\n\ns"),
        Message(role="user", content="u\n\nu"),
        calls(ToolCall(name="g", id="call00001")),
        result("1", tool_call_id="call00001", tool_name="g"),
    ]
