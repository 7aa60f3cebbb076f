"""Measure how many old tokens are evaluated again in a chat's second turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specd import core
from specd.bench.measure import ask, engine_process
from specd.bench.subject import Subject
from specd.core import Message
from specd.prompt import render_chat
from specd.runner import EngineClient
from specd.store.gguf_metadata import GgufMetadata, read_metadata

_CHATS = (
    ("Write a function that counts the words of a text.", "Now count lines, too."),
    ("What is a generator?", "Show a short one."),
    ("Write a class for a stack.", "Add a method that tells whether it is empty."),
    ("How do I read a file line by line?", "And backwards?"),
)
_N_TOKENS = 96
_N_CTX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondTurn:
    """The tokens of a second turn.

    n_prompt: of the whole second prompt.  n_known: those at its beginning that the first turn
    evaluated.  n_evaluated: those that the engine evaluated now.
    """

    n_prompt: int
    n_known: int
    n_evaluated: int

    @property
    def n_new(self) -> int:
        return self.n_prompt - self.n_known


async def second_turns(subject: Subject) -> list[SecondTurn]:
    """Run every chat in an engine of two slots, with speculation, rendered as the daemon does.

    Raises LoadFailed, EngineError, InvalidRequest if the model has no usable chat template.
    """
    facts = read_metadata(subject.target)
    spec = core.EngineSpec(
        weights=str(subject.target),
        drafter=str(subject.drafter) if subject.drafter else None,
        n_ctx=_N_CTX,
        n_slots=2,
        n_gpu_layers=0,
    )
    async with engine_process(spec) as (engine, _):
        return [await _second_turn(engine, facts, *chat) for chat in _CHATS]


async def _second_turn(
    engine: EngineClient, facts: GgufMetadata, first: str, second: str
) -> SecondTurn:
    said = [Message(role="user", content=first)]
    answer = await ask(engine, _request(_rendered(facts, said)))
    said += [Message(role="assistant", content=answer.text), Message(role="user", content=second)]
    text = _rendered(facts, said)
    usage = (await ask(engine, _request(text))).done.usage
    known = _n_common(await engine.tokenize(text, add_bos=True), _evaluated(answer.done))
    return SecondTurn(
        n_prompt=usage.n_prompt, n_known=known, n_evaluated=usage.n_prompt - usage.n_cached
    )


def _evaluated(done: core.Done) -> tuple[core.TokenId, ...]:
    """Return the evaluated tokens: not the last one of an answer that was cut short."""
    return done.context if done.reason is core.StopReason.STOP else done.context[:-1]


def _rendered(facts: GgufMetadata, said: Sequence[Message]) -> str:
    assert facts.chat_template is not None, "the demo pair has a template"
    return render_chat(
        facts.chat_template,
        tuple(said),
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        think=False,
    )


def _request(text: str) -> core.EngineRequest:
    return core.EngineRequest(
        prompt=(text,),
        sampling=core.SamplingParams(seed=1),
        n_predict=_N_TOKENS,
        shift=False,
        want_context=True,
    )


def _n_common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
