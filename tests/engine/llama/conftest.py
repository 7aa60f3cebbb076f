"""A loaded pair and its loop, in this process: no faults are injected here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specd
from specd.core import Done, EngineRequest, EngineSpec, Image, SamplingParams
from specd.engine import loader
from specd.engine.backend import Backend, Batch
from specd.engine.loop import Loop
from specd.engine.media import Media
from specd.engine.noise import negative_gumbel
from specd.engine.sampler import CoupledSampler, Row, penalize
from specd.engine.slot import common_prefix
from specd.engine.worker import make_loop
from specd.ipc.messages import Finished, ToDaemon, Tokens

DEMO = Path(specd.__file__).parent / "demo"
TARGET, DRAFTER = DEMO / "target.gguf", DEMO / "drafter.gguf"

#: Rows do not depend on other rows of their pass: quantised weights, flash attention, f16 cache.
#: Without flash attention the kernels for one row and for several differ in the last bits.
BATCH_INVARIANT = {"kv_cache_type": "f16", "flash_attention": True}
#: What two kernels may differ by in a logit (a last bit, enlarged by 8-bit activations).
ROUNDING = 0.5


@dataclass
class Engine:
    loop: Loop
    loaded: loader.LoadedPair
    said: list[ToDaemon] = field(default_factory=list)

    def answer(
        self, prompt: str | tuple[str | int | Image, ...], **fields: Any
    ) -> tuple[str, Done]:
        """Return the text and the end of one request that runs alone."""
        self.said.clear()
        self.loop.submit(1, request(prompt, **fields))
        while self.loop.is_busy:
            self.loop.step()
        end = self.said[-1]
        assert isinstance(end, Finished)
        assert isinstance(end.event, Done), end.event
        text = "".join(m.token.text for m in self.said if isinstance(m, Tokens))
        return text, end.event


def request(prompt: str | tuple[str | int | Image, ...], **fields: Any) -> EngineRequest:
    sampling = {
        name: fields.pop(name)
        for name in ("seed", "temperature", "top_k", "top_p", "repeat_penalty")
        if name in fields
    }
    fields.setdefault("n_predict", 64)
    pieces = (prompt,) if isinstance(prompt, str) else prompt
    return EngineRequest(prompt=pieces, sampling=SamplingParams(**sampling), **fields)


def load(target: Path, drafter: Path | None = None, **fields: Any) -> Engine:
    """One thread: the tests share few cores, and llama.cpp's threads wait for each other."""
    spec = EngineSpec(
        weights=str(target),
        drafter=str(drafter) if drafter else None,
        drafter_name="drafter" if drafter else "",
        **{"n_ctx": 512, "n_threads": 1, **fields},
    )
    loaded = loader.load_pair(spec, lambda _: None)
    engine = Engine.__new__(Engine)
    said: list[ToDaemon] = []
    engine.loop, engine.loaded, engine.said = make_loop(spec, loaded, said.append), loaded, said
    return engine


class Recorder:
    """A backend that remembers the last row drawn from at each (slot, position)."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batch = Batch()
        self.rows: dict[tuple[int, int], Row] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, batch: Batch) -> None:
        self._batch = batch
        self._backend.decode(batch)

    def decode_media(
        self, slot: int, n_past: int, media: Media, begin: int, n: int, *, wants_logits: bool
    ) -> None:
        self._batch = Batch([], list(range(n_past, n_past + n)), [slot] * n)
        self._backend.decode_media(slot, n_past, media, begin, n, wants_logits=wants_logits)

    def row(self, index: int) -> Row:
        row = self._backend.row(index)
        self.rows[self._batch.slots[index], self._batch.positions[index]] = row.copy()
        return row


def assert_near_tie(
    a: Row,
    b: Row,
    x: int,
    y: int,
    seed: int,
    position: int,
    temperature: float = SamplingParams().temperature,
) -> None:
    """The token x was drawn from row a and y from row b, of the same position."""
    assert x != y
    difference = float(np.abs(a - b).max())
    assert 0 < difference < ROUNDING
    noise = -negative_gumbel(seed, position, np.array([x, y]))
    if temperature <= 0:
        temperature, noise = 1.0, np.zeros(2)
    for row, winner in ((a, 0), (b, 1)):
        scores = row[[x, y]].astype(np.float64) / temperature + noise
        gap = scores[winner] - scores[1 - winner]
        assert 0 <= gap <= 2 * difference / temperature


def assert_same_text(
    engine: Engine,
    prompt: str | tuple[str | int | Image, ...],
    drafting: dict[str, Any],
    **asked: Any,
) -> Done:
    """Assert that drafts change the text only at a near tie, and only if the self-check allows it.

    Filters are off, so that the score alone decides.  Return the end of the drafted answer.
    """
    asked = {"top_k": 0, "top_p": 1.0, "want_context": True, **asked}
    # Both answers find the same prompt in the cache.
    engine.answer(prompt, **{**asked, "n_predict": 1, "n_draft_max": 0})
    target, ends, recorders = engine.loop.target, [], []
    for how in ({"n_draft_max": 0}, drafting):
        recorder: Any = Recorder(target)
        engine.loop.target = engine.loop.prefill.target = recorder
        ends.append(engine.answer(prompt, **how, **asked)[1])
        recorders.append(recorder)
    engine.loop.target = engine.loop.prefill.target = target
    plain, drafted = (list(end.context) for end in ends)
    if plain == drafted:
        return ends[1]
    exact = engine.loaded.facts.exact
    assert exact is not None
    assert not exact.speculation, "the self-check found that drafts change no bit"
    n_same, n_prompt = common_prefix(plain, drafted), ends[0].usage.n_prompt
    position = n_same - engine.loop.slots[0].n_text_tokens(n_prompt)
    a, b = (recorder.rows[0, n_prompt + position - 1] for recorder in recorders)
    params = request(prompt, **asked).sampling
    sampler = CoupledSampler(params)
    x, y = (sampler.token(row, plain[:n_same], position) for row in (a, b))
    for token, said in ((x, plain), (y, drafted)):
        assert [token] == said[n_same : n_same + 1] or engine.loaded.vocabulary.is_eog(token)
    a, b = (penalize(row, plain[:n_same], params) for row in (a, b))
    assert_near_tie(a, b, x, y, params.seed, position, params.temperature)
    return ends[1]


@pytest.fixture(scope="session")
def invariant_demo() -> Engine:
    return load(TARGET, DRAFTER, **BATCH_INVARIANT)


@pytest.fixture(scope="session")
def demo() -> Engine:
    return load(TARGET, DRAFTER, n_slots=3)


LoadEngine = Callable[..., Engine]
