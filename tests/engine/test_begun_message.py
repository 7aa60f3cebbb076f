"""Started is sent once, when a request gets a slot."""

from __future__ import annotations

from specd.core import Failed, FailureKind
from specd.ipc.messages import Started, Tokens
from tests.engine.test_loop import Engine


def begun(engine: Engine) -> dict[int, Started]:
    said = [message for message in engine.said if isinstance(message, Started)]
    assert len(said) == len({message.request_id for message in said})
    return {message.request_id: message for message in said}


def test_started_is_sent_when_a_slot_is_assigned() -> None:
    engine = Engine(n_slots=1)
    engine.submit(1)
    engine.submit(2)
    assert begun(engine) == {}
    engine.loop.step()
    assert begun(engine).keys() == {1}
    engine.run()
    assert begun(engine).keys() == {1, 2}
    for request_id, said in begun(engine).items():
        usage = engine.done(request_id).usage
        assert (said.n_prompt, said.n_cached) == (usage.n_prompt, usage.n_cached)
        tokens = [m for m in engine.said if isinstance(m, Tokens) and m.request_id == request_id]
        assert engine.said.index(said) < engine.said.index(tokens[0])
    assert begun(engine)[2].n_cached > 0


def test_a_request_that_ends_in_the_queue_has_no_started() -> None:
    engine = Engine(n_slots=1)
    for request_id in (1, 2, 3):
        engine.submit(request_id)
    engine.loop.step()
    engine.loop.cancel(2)
    engine.loop.fail_all(FailureKind.SHUTDOWN, "bye")
    assert isinstance(engine.end(3), Failed)
    assert begun(engine).keys() == {1}
