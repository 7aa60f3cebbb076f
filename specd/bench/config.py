"""What `specd bench` was asked, and what that comes to: a pair, modes, legs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.peer import PeerBinary
from specd.bench.quantized_blocks import FileType
from specd.bench.rendering import Renderer
from specd.bench.schedule import BenchPlan, RunSet, make_run_sets
from specd.bench.subject import Subject, find_subject
from specd.bench.synthetic import parse_count
from specd.bench.workload import HOSTILE, WORKLOADS, load_workload
from specd.core import DrafterKind
from specd.errors import InvalidRequest
from specd.settings import Settings

#: The size of the target where nobody names a model: small for a server, large beside a drafter.
DEFAULT_SIZE = "1b"
#: Servers of a peer that are kept loaded beside the engine; one of them decodes plainly.
MAX_PEERS = 4
_USUAL = (DrafterKind.MODEL, DrafterKind.LOOKUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is to be compared, on what, and how long.

    target_size: "" leaves the target as it is, but for the demo pair's, which becomes DEFAULT_SIZE.
    n_prompts: of each workload in each of n_repeats.  streams: how many are asked at once.
    draft_lengths: of the fixed modes.  prompt_lookup: whether users have it.
    each_drafter: auto with one kind of drafter alone, too.
    peer: None leaves it out.  peer_lengths: its n_max.
    overhead: plain decoding alone, the peer's too.
    n_threads: 0 is as many as the daemon would use.
    """

    model: str = ""
    target: Path | None = None
    drafter: Path | None = None
    target_size: str = ""
    target_type: FileType = FileType.Q8_0
    workloads: Sequence[str] = WORKLOADS
    n_prompts: int = 2
    n_repeats: int = 1
    n_tokens: int = 48
    temperatures: Sequence[float] = (0.8,)
    draft_lengths: Sequence[int] = (1, 3, 7)
    streams: Sequence[int] = (1,)
    prompt_lookup: bool = True
    each_drafter: bool = False
    peer: PeerBinary | None = None
    peer_lengths: Sequence[int] = (1, 3, 7)
    overhead: bool = False
    n_threads: int = 0
    n_gpu_layers: int = -1

    def subject(self, settings: Settings, on_padding: Callable[[float], None]) -> Subject:
        """The pair; writing a large target may take seconds, `on_padding` hears how far it is."""
        subject = find_subject(self.model, self.target, self.drafter, settings)
        size = self.target_size
        if not size and not self.model and self.target is None:
            size = DEFAULT_SIZE
        if not size:
            return subject
        try:
            n_parameters = parse_count(size)
        except ValueError as error:
            raise InvalidRequest(f"--target-size: {error}") from error
        return subject.enlarged(n_parameters, on_padding, self.target_type)

    def modes(self, *, has_drafter: bool) -> tuple[Mode, ...]:
        """Without a drafter nothing can be fixed: plain, and what auto makes of prompt lookup."""
        peer = [PEER_PLAIN] if self.peer is not None else []
        if self.overhead:
            return (PLAIN, *peer)
        if not has_drafter:
            return (PLAIN, AUTO, *peer)
        alone = map(Mode.drafter, DrafterKind) if self.each_drafter else ()
        if peer:
            peer += map(Mode.peer_draft, self.peer_lengths)
        if len(peer) > MAX_PEERS:
            raise InvalidRequest(
                f"--peer-drafts: at most {MAX_PEERS - 1} lengths, each has a server of its own"
            )
        return (PLAIN, *map(Mode.fixed, self.draft_lengths), *alone, AUTO, *peer)

    def names(self, subject: Subject) -> tuple[str, ...]:
        """Workloads that make sense for it: no drafter can be made useless where there is none."""
        has_drafter = subject.drafter is not None
        return tuple(name for name in self.workloads if has_drafter or name != HOSTILE)

    def run_sets(self, subject: Subject) -> tuple[RunSet, ...]:
        """InvalidRequest where the workloads cannot fill them."""
        names = self.names(subject)
        if not names:
            raise InvalidRequest(f"the workload {HOSTILE} takes a drafter to make useless")
        bench_plan = BenchPlan(
            workloads=[load_workload(name) for name in names],
            modes=self.modes(has_drafter=subject.drafter is not None),
            temperatures=self.temperatures,
            n_tokens=self.n_tokens,
            n_prompts=self.n_prompts,
            drafters=_USUAL if self.prompt_lookup else (DrafterKind.MODEL,),
            n_repeats=self.n_repeats,
            streams=self.streams,
        )
        return tuple(make_run_sets(bench_plan, Renderer.of(subject.target).render))
