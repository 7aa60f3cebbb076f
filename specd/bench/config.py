"""The configuration of a bench, and the pair, modes and run sets that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specd.bench.mode import AUTO, PEER_PLAIN, PLAIN, Mode
from specd.bench.peer import PeerBinary
from specd.bench.quantized_blocks import FileType
from specd.bench.schedule import BenchPlan, RunSet, make_run_sets
from specd.bench.subject import Subject, find_subject
from specd.bench.synthetic import parse_count
from specd.bench.workload import HOSTILE, WORKLOADS, Renderer, load_workload
from specd.core import DrafterKind
from specd.errors import InvalidRequest
from specd.settings import Settings

#: Size of the demo pair's target: small for a server, large beside a drafter.
DEFAULT_SIZE = "1b"
#: Peer servers loaded beside the engine; one of them decodes plainly.
MAX_PEERS = 4
_USUAL = (DrafterKind.MODEL, DrafterKind.LOOKUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """The configuration of a bench.

    target_size: "" leaves the target unpadded; the demo pair's is then padded to DEFAULT_SIZE.
    n_prompts: of each workload in each of n_repeats.  streams: numbers of simultaneous requests.
    draft_lengths: of the fixed modes, tokens.  prompt_lookup: whether auto uses it.
    each_drafter: also run auto with each kind of drafter alone.
    peer: None runs no peer.  peer_lengths: its n_max, tokens.
    overhead: run plain decoding only, here and on the peer.
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
        """Return the pair, its target padded if asked.  on_padding: receives the written share.

        Raises InvalidRequest, StoreError.
        """
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
        """Return the modes; without a drafter only plain and auto, which has prompt lookup."""
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
                f"--peer-drafts: at most {MAX_PEERS - 1} lengths, since each has a server"
            )
        return (PLAIN, *map(Mode.fixed, self.draft_lengths), *alone, AUTO, *peer)

    def names(self, subject: Subject) -> tuple[str, ...]:
        """Return the workloads; without a drafter the hostile one is left out."""
        has_drafter = subject.drafter is not None
        return tuple(name for name in self.workloads if has_drafter or name != HOSTILE)

    def run_sets(self, subject: Subject) -> tuple[RunSet, ...]:
        """Return the run sets.  Raises InvalidRequest where the workloads have too few prompts."""
        names = self.names(subject)
        if not names:
            raise InvalidRequest(f"the workload {HOSTILE} needs a drafter")
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
