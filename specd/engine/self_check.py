"""The self-check of a model before it serves, and what SPECD_EXACT makes of its findings.

It runs in contexts of its own, small ones, before the model's own is made.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from specd.core import Enforced, EngineSpec, Exactness, NoPair
from specd.engine.backend import DecodeFailed
from specd.engine.exact_passes import ExactPasses
from specd.engine.exactness import (
    FEW_ALONE,
    MAX_SLOTS,
    N_CROWD,
    N_DEEPER,
    N_HISTORY,
    WIDER,
    Depth,
    Findings,
    measure,
)
from specd.engine.llama.library import NativeLog
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.probe import OutOfTime, ProbeContext
from specd.errors import LoadFailed

log = logging.getLogger("specd.engine")

#: A model of more parameters is compared at few widths: its passes take long.
_LARGE = 500_000_000
#: Leaves of each slot in the check: the first and the last position are enough.
_N_LEAVES = 2
#: Longest time that the check of a large model takes, unless SPECD_EXACT depends on its findings.
_BUDGET_S = 2.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """exactness: None if the check failed.  passes: None if any division into passes will do.

    takes_leaves: whether drafts may have leaves without changing any text that is exact.
    """

    exactness: Exactness | None
    passes: ExactPasses | None = None
    takes_leaves: bool = False


def check(model: LlamaModel, spec: EngineSpec, native_log: NativeLog, *, longest: int) -> Verdict:
    """Measure for this build, model, cache type and flash attention.  longest: draft, in tokens."""
    found = _measure(model, spec, native_log, longest, cache_per_slot=False)
    exactness, takes_leaves = None, not spec.exact
    if found is not None:
        exactness = found.exactness(longest, spec.n_slots, spec.n_batch)
        takes_leaves = takes_leaves and (found.leaves or not exactness.speculation)
        log.info("rows of %s: %s", spec.weights, _words(exactness))
    needs_nothing = exactness is not None and all(
        (exactness.speculation, exactness.parallel, exactness.prompt_cache)
    )
    if not spec.exact or needs_nothing:
        return Verdict(exactness, takes_leaves=takes_leaves)
    if spec.n_slots > 1 and found is not None:
        apart = _measure(model, spec, native_log, longest, cache_per_slot=True)
        found = _joined(found, apart)
    passes = ExactPasses.of(found, longest, spec.n_batch)
    enforced = tuple(_enforced(spec, passes))
    log.info("SPECD_EXACT: %s", ", ".join(enforced))
    exactness = Exactness(speculation=True, parallel=True, prompt_cache=True, enforced=enforced)
    return Verdict(exactness, passes)


def _joined(shared: Findings, apart: Findings | None) -> Findings | None:
    """What holds for a cache per slot: its depth was measured where slots share one."""
    if apart is None:
        return None
    return Findings(
        n_even=min(shared.n_even, apart.n_even), parallel=apart.parallel, depth=shared.depth
    )


def _enforced(spec: EngineSpec, passes: ExactPasses) -> list[str]:
    price: list[str] = []
    drafted = spec.no_pair_reason != NoPair.DISABLED_BY_USER
    if drafted and not passes.drafts:
        price.append(Enforced.NO_DRAFTS)
    if spec.n_slots > 1:
        price.append(Enforced.CACHE_PER_SLOT)
        if not passes.n_shared:
            price.append(Enforced.ONE_SLOT_AT_A_TIME)
    price.append(Enforced.NARROW_PROMPTS if passes.reuses_all else Enforced.PROMPTS_IN_PIECES)
    return price


def _words(exactness: Exactness) -> str:
    kinds = ("speculation", "parallel", "prompt_cache")
    kept = [kind for kind in kinds if getattr(exactness, kind)]
    return f"the same bits whatever the {', '.join(kept)}" if kept else "depend on their pass"


def _measure(
    model: LlamaModel,
    spec: EngineSpec,
    native_log: NativeLog,
    longest: int,
    *,
    cache_per_slot: bool,
) -> Findings | None:
    """Return what was found; None without room or time, or where the cache cannot be copied."""
    is_small = model.n_parameters < _LARGE
    depth = _depth(model, cache_per_slot=cache_per_slot)
    if depth is Depth.READ and not (is_small or spec.exact):
        # It would read hundreds of tokens through a large model.
        return None
    widest = WIDER[0] if spec.exact else longest + 1
    if is_small:
        widest = max(spec.n_batch, longest + 1)
    n_tested = min(max(spec.n_slots, 1), MAX_SLOTS)
    n_slots = max(n_tested, 2, N_CROWD + 1 if depth is Depth.CROWD else 0)
    # Slots that share a cache share its cells, and one of them alone has the widest pass.
    n_wide = widest if cache_per_slot else -(-widest // n_slots)
    n_leaves = _N_LEAVES if spec.drafter is not None and not cache_per_slot else 0
    # The check's own buffers and complaints are not the model's.
    buffers, errors = list(native_log.buffers), list(native_log.errors)
    try:
        probe = ProbeContext(
            model,
            native_log,
            n_ctx=N_HISTORY + n_wide + (N_DEEPER if depth is Depth.READ else 0),
            n_slots=n_slots,
            n_batch=max(widest, 32),
            n_outputs=max(longest + 1, n_slots * (1 + n_leaves)),
            n_threads=spec.n_threads,
            flash_attention=spec.flash_attention,
            kv_cache_type=spec.kv_cache_type,
            n_rewind=longest,
            n_leaves=n_leaves,
            cache_per_slot=cache_per_slot,
            deadline=None if is_small or spec.exact else time.monotonic() + _BUDGET_S,
        )
        try:
            return measure(
                probe,
                n_slots=n_tested,
                longest=longest,
                widest=widest,
                depth=depth,
                n_alone=longest + 1 if is_small else FEW_ALONE,
                thorough=is_small and spec.exact,
                shares_cells=not cache_per_slot,
            )
        finally:
            probe.close()
    except OutOfTime:
        log.info("rows of %s: not known after %g s; SPECD_EXACT checks on", spec.weights, _BUDGET_S)
        return None
    except (LoadFailed, DecodeFailed) as error:
        log.warning("the self-check of %s failed: %s", spec.weights, error)
        return None
    finally:
        native_log.buffers[:] = buffers
        native_log.errors.clear()
        native_log.errors.extend(errors)


def _depth(model: LlamaModel, *, cache_per_slot: bool) -> Depth:
    """Copies of a running state are too large for a crowd of slots, so hybrids read on."""
    if cache_per_slot or model.is_stateful_only:
        return Depth.NONE
    return Depth.READ if model.is_recurrent else Depth.CROWD
