"""Build runs and reports with known figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from specd import core
from specd.bench.comparison import compare
from specd.bench.mix import mixes
from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.report import MachineInfo, Report
from specd.bench.runs import Run
from specd.bench.subject import Subject
from specd.store.gguf_metadata import GgufMetadata

N_TIMED = 20

K1, K3, N1, N3 = Mode.fixed(1), Mode.fixed(3), Mode.peer_draft(1), Mode.peer_draft(3)
MODES = {mode.name: mode for mode in (PLAIN, K1, K3, AUTO, PEER_PLAIN, N1, N3)}

MACHINE = MachineInfo(
    cpu="Abacus 9000",
    n_cores=4,
    memory_bytes=2**33,
    accelerators=(),
    system="Linux",
    python="3.11.0",
    specd="0.1.0",
    llama_cpp_python="0.3.36",
    load_average=0.25,
)


def run(
    mode: Mode,
    tokens_per_s: float,
    *,
    prompt: int = 0,
    workload: str = "json",
    temperature: float = 0.0,
    streams: int = 1,
    text: str = "same",
    n_timed: int = N_TIMED,
    native_share: float | None = None,
    n_cached: int = 1,
) -> Run:
    """Return an answer of that speed; drafting modes accepted seven of ten tokens."""
    seconds, drafts = n_timed / tokens_per_s, mode != PLAIN
    return Run(
        workload=workload,
        temperature=temperature,
        prompt=prompt,
        mode=mode,
        streams=streams,
        texts=(text,) * streams,
        n_prompt=10,
        n_cached=n_cached,
        n_generated=n_timed + 1,
        n_timed=n_timed,
        seconds=seconds,
        native_s=None if native_share is None else seconds * native_share,
        n_drafted=10 * drafts,
        n_accepted=7 * drafts,
        rounds=4 * drafts,
        drafted_per_depth=(4, 4, 2) if drafts else (),
        accepted_per_depth=(4, 2, 1) if drafts else (),
    )


def runs(speeds: Mapping[str, Sequence[float]], workload: str = "json") -> list[Run]:
    """speeds: per mode, one per prompt."""
    return [
        run(MODES[name], speed, prompt=i, workload=workload)
        for name, each in speeds.items()
        for i, speed in enumerate(each)
    ]


def report(answers: Sequence[Run], *, padded: bool = True) -> Report:
    memory = core.ModelMemory(device="CPU", total_bytes=12_000_000, vram_bytes=0)
    facts = GgufMetadata(
        architecture="llama",
        n_ctx_train=2048,
        n_embd=2048,
        n_parameters=1_010_000_000,
        file_type="Q8_0",
        chat_template=None,
        bos_token="",
        eos_token="",
        has_pooling=False,
        has_vision=False,
        has_audio=False,
    )
    moment = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    return Report(
        subject=Subject(
            name="specd-demo:latest",
            target=Path("/somewhere/private/target.gguf"),
            drafter=Path("/somewhere/private/drafter.gguf"),
            drafter_name="little",
            padded=padded,
        ),
        spec=core.EngineSpec(weights="/somewhere/private/target.gguf", n_threads=4),
        engine=core.EngineFacts(
            n_ctx=2048,
            n_ctx_train=2048,
            n_vocab=2048,
            target=memory,
            drafter=memory,
            costs=core.PassCosts(target_s=((1, 0.04), (4, 0.06)), draft_step_s=0.002),
        ),
        facts=facts,
        machine=MACHINE,
        workloads=("json", "chat"),
        n_prompts=1,
        n_repeats=1,
        n_tokens=96,
        began=moment,
        ended=moment,
        load_average_after=3.5,
        runs=answers,
        comparisons=compare(answers),
        mixes=mixes(answers),
    )
