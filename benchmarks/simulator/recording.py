"""Record a trace: the target writes its answers, and the drafter guesses at every position of them.

Both models are loaded and run as the engine does: the same backends, samplers and shared noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import specd
from benchmarks.simulator.trace import Answer, Trace
from specd.bench.workload import HOSTILE, WORKLOADS, Renderer, load_workload
from specd.core import Done, EngineRequest, EngineSpec, SamplingParams, TokenId
from specd.engine import loader
from specd.engine.sampler import Choice, CoupledSampler, Row
from specd.engine.speculative.controller import MAX_DRAFT
from specd.engine.speculative.draft_model import DraftJob, DraftModel
from specd.engine.worker import make_loop
from specd.errors import EngineError, LoadFailed
from specd.ipc.messages import Finished, ToDaemon

KINDS = tuple(name for name in WORKLOADS if name != HOSTILE)
TEMPERATURES = (0.0, 0.8)
#: Context of each slot: the workloads' longest prompt, an answer, and a draft after its end.
_N_CTX = 1536
#: How often each prompt is sent before a kind of text gets fewer answers.
_N_TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The settings of a recording: n_answers of n_tokens for each kind of text and temperature.

    noise: the noise in the drafter's weights, stored with the trace.
    n_slots: answers that are written, or guessed at, at a time.
    """

    target: Path
    drafter: Path
    name: str
    noise: float = 0.0
    kinds: Sequence[str] = KINDS
    temperatures: Sequence[float] = TEMPERATURES
    n_answers: int = 12
    n_tokens: int = 208
    n_slots: int = 16

    def run(self, on_progress: Callable[[str], None] = lambda _: None) -> Trace:
        """Load the pair, write the answers and guess at them.  Raises LoadFailed, EngineError."""
        spec = self._spec()
        loaded = loader.load_pair(spec, lambda _: None)
        if loaded.drafter is None:
            raise LoadFailed(f"{self.drafter} cannot draft: {loaded.facts.no_pair_detail}")
        author = _AnswerRecorder(spec, loaded)
        renderer = Renderer.of(self.target)
        written: list[_RecordedAnswer] = []
        for temperature in self.temperatures:
            found = []
            for kind in self.kinds:
                asked = self._asked(renderer, kind, temperature)
                found.append(author.write(asked, self.n_answers, self.n_tokens))
                on_progress(f"{kind}, temperature {temperature:g}: {len(found[-1])} answers")
            written += _balance_acceptance(found, self.n_answers)
        on_progress(f"{self.drafter.name} guesses at {len(written)} answers")
        drafter = DraftModel(loaded.drafter, loaded.vocabulary, spec.n_slots)
        guess_all(drafter, loaded.vocabulary.is_eog, written, spec.n_slots)
        return Trace(self.name, self._provenance(), tuple(w.answer() for w in written))

    def _spec(self) -> EngineSpec:
        return EngineSpec(
            weights=str(self.target),
            drafter=str(self.drafter),
            n_ctx=_N_CTX,
            n_slots=self.n_slots,
            n_threads=1,
            flash_attention=True,
        )

    def _asked(
        self, renderer: Renderer, kind: str, temperature: float
    ) -> Iterator[_RecordingRequest]:
        """Yield each prompt alone, then again after another prompt, with other seeds."""
        workload = load_workload(kind)
        prompts = (*workload.prompts, *workload.warm_up)
        for turn in range(_N_TURNS):
            for number, prompt in enumerate(prompts):
                other = prompts[(number + turn) % len(prompts)].text
                both = replace(prompt, text=f"{other}\n\n{prompt.text}") if turn else prompt
                sampling = SamplingParams(temperature=temperature, seed=1000 * turn + number)
                yield _RecordingRequest(kind, renderer.render(workload.form, both), sampling)

    def _provenance(self) -> dict[str, Any]:
        params = SamplingParams()
        return {
            "target": {"file": self.target.name, "sha256": _digest(self.target)},
            "drafter": {"file": self.drafter.name, "sha256": _digest(self.drafter)},
            "noise": self.noise,
            "specd": specd.__version__,
            "llama-cpp-python": metadata.version("llama-cpp-python"),
            "kinds": list(self.kinds),
            "n_answers": self.n_answers,
            "n_tokens": self.n_tokens,
            "top_k": params.top_k,
            "top_p": params.top_p,
        }


@dataclass(frozen=True, slots=True)
class _RecordingRequest:
    kind: str
    text: str
    sampling: SamplingParams


@dataclass(slots=True)
class _RecordedAnswer:
    """An answer, and its guesses so far.

    The prompt's pass gives the first token, so there is no guess for it.
    """

    kind: str
    sampling: SamplingParams
    prompt: list[TokenId]
    tokens: list[TokenId]
    right: list[bool] = field(default_factory=lambda: [False])
    margins: list[float] = field(default_factory=lambda: [0.0])
    second_right: list[bool] = field(default_factory=lambda: [False])
    after_error: list[list[float]] = field(default_factory=lambda: [[]])
    #: The draft after a wrong guess, that guess included; empty along the true text.
    astray: list[TokenId] = field(default_factory=list)

    def answer(self) -> Answer:
        return Answer(
            kind=self.kind,
            temperature=self.sampling.temperature,
            seed=self.sampling.seed,
            prompt=self.prompt,
            tokens=self.tokens,
            right=self.right,
            margins=self.margins,
            second_right=self.second_right,
            after_error=self.after_error,
        )


def _balance_acceptance(
    found: Sequence[Sequence[_RecordedAnswer]], n_each: int
) -> list[_RecordedAnswer]:
    """Return n answers of each kind; missing ones are replaced by those of other kinds, in turn."""
    chosen = [written for several in found for written in several[:n_each]]
    spare = zip_longest(*(several[n_each:] for several in found))
    others = [written for several in spare for written in several if written is not None]
    return chosen + others[: n_each * len(found) - len(chosen)]


class _AnswerRecorder:
    """The engine's loop without drafts."""

    def __init__(self, spec: EngineSpec, loaded: loader.LoadedPair) -> None:
        self._said: list[ToDaemon] = []
        self._loop = make_loop(spec, loaded, self._said.append)
        self._n_slots = spec.n_slots
        self._n_asked = 0

    def write(
        self, asked: Iterator[_RecordingRequest], n_answers: int, n_tokens: int
    ) -> list[_RecordedAnswer]:
        """Return at least n_answers with n_tokens each; fewer if the prompts run out."""
        found: list[_RecordedAnswer] = []
        while len(found) < n_answers:
            several = [question for _, question in zip(range(self._n_slots), asked, strict=False)]
            if not several:
                break
            answers = self._answers(several, n_tokens)
            found += [written for written in answers if len(written.tokens) == n_tokens]
        return found

    def _answers(self, asked: Sequence[_RecordingRequest], n_tokens: int) -> list[_RecordedAnswer]:
        self._said.clear()
        ids = range(self._n_asked, self._n_asked + len(asked))
        self._n_asked += len(asked)
        for request_id, question in zip(ids, asked, strict=True):
            request = EngineRequest(
                prompt=(question.text,),
                sampling=question.sampling,
                n_predict=n_tokens,
                n_draft_max=0,
                want_context=True,
            )
            self._loop.submit(request_id, request)
        while self._loop.is_busy:
            self._loop.step()
        ends = {m.request_id: m.event for m in self._said if isinstance(m, Finished)}
        return [_written(q, ends[i]) for i, q in zip(ids, asked, strict=True)]


def _written(asked: _RecordingRequest, end: object) -> _RecordedAnswer:
    if not isinstance(end, Done):
        raise EngineError(f"the target gave no answer: {end}")
    n_prompt = end.usage.n_prompt
    tokens = [*end.context]
    return _RecordedAnswer(asked.kind, asked.sampling, tokens[:n_prompt], tokens[n_prompt:])


class _RecordingSampler:
    """Sample as the drafter does, and find whether the second best is right after a wrong guess."""

    def __init__(self, params: SamplingParams) -> None:
        self._sampler = CoupledSampler(params)
        self.truth: TokenId | None = None
        self.second_right = False

    @property
    def reads_history(self) -> bool:
        return self._sampler.reads_history

    def token(self, row: Row, history: Sequence[TokenId], position: int) -> TokenId:
        return self._sampler.token(row, history, position)

    def sample(self, row: Row, history: Sequence[TokenId], position: int) -> Choice:
        choice = self._sampler.sample(row, history, position)
        self.second_right = False
        if self.truth is not None and choice.token != self.truth:
            others = row.copy()
            others[choice.token] = -np.inf
            self.second_right = self._sampler.sample(others, history, position).token == self.truth
        return choice


def guess_all(
    drafter: DraftModel,
    is_eog: Callable[[TokenId], bool],
    answers: Sequence[_RecordedAnswer],
    n_slots: int,
) -> None:
    """Fill in the guesses of all answers, as many at a time as there are slots."""
    waiting = iter(answers)
    at_work: dict[int, tuple[_RecordedAnswer, _RecordingSampler]] = {}
    while True:
        for slot in range(n_slots):
            if slot not in at_work and (written := next(waiting, None)) is not None:
                drafter.rewind(slot, 0)
                at_work[slot] = written, _RecordingSampler(written.sampling)
        if not at_work:
            return
        jobs = [_job(slot, *pair_) for slot, pair_ in at_work.items()]
        drafter.draft(jobs)
        for job, (slot, (written, sampler)) in zip(jobs, [*at_work.items()], strict=True):
            if _note(written, sampler, job, is_eog):
                drafter.rewind(slot, len(written.prompt) + len(written.right) - 1)
            if len(written.right) == len(written.tokens) and not written.astray:
                del at_work[slot]


def _job(slot: int, written: _RecordedAnswer, sampler: _RecordingSampler) -> DraftJob:
    """Return one more draft job: after the true text, or after a wrong guess."""
    n_true = len(written.right) - bool(written.astray)
    sampler.truth = None if written.astray else written.tokens[n_true]
    return DraftJob(
        slot=slot,
        history=[*written.prompt, *written.tokens[:n_true], *written.astray],
        sampler=sampler,
        position=n_true + len(written.astray),
        n_max=1,
        extend=lambda _: False,
    )


def _note(
    written: _RecordedAnswer,
    sampler: _RecordingSampler,
    job: DraftJob,
    is_eog: Callable[[TokenId], bool],
) -> bool:
    """Store a guess; return whether it was the last one after an error."""
    [token], [margin] = job.tokens, job.margins
    if written.astray:
        written.after_error[-1].append(margin)
    else:
        written.right.append(token == sampler.truth)
        written.margins.append(margin)
        written.second_right.append(sampler.second_right)
        written.after_error.append([])
    if written.right[-1]:
        return False
    written.astray.append(token)
    if len(written.astray) < MAX_DRAFT and not is_eog(token):
        return False
    written.astray.clear()
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
