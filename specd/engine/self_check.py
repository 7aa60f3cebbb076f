"""The self-check of a model before it serves, and the restrictions of SPECD_EXACT.

It runs in small contexts of its own, before the model's real context is made.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import dataclass, replace

from specd.core import Enforced, EngineSpec, Exactness, NoPair
from specd.engine.backend import DecodeFailed
from specd.engine.exact_passes import ExactPasses
from specd.engine.exactness import (
    FEW_SINGLE_ROWS,
    MAX_SLOTS,
    N_EXTRA_SLOTS,
    N_EXTRA_TOKENS,
    N_HISTORY,
    PROMPT_WIDTHS,
    Depth,
    Findings,
    measure,
)
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.probe import ProbeContext, ProbeTimeout
from specd.errors import LoadFailed

log = logging.getLogger("specd.engine")

#: Models with more parameters are compared at few widths, because their passes take long.
_LARGE = 500_000_000
#: Leaves of each slot in the check: the first and the last position are enough.
_N_LEAVES = 2
#: Longest time that the check of a large model takes, unless SPECD_EXACT depends on its findings.
_BUDGET_S = 2.5


@dataclass(frozen=True, slots=True)
class SelfCheckResult:
    """The result of a self-check.

    exactness: None if the check failed.  passes: None if any division into passes is allowed.
    can_take_leaves: whether drafts may have leaves without changing any text that is exact.
    """

    exactness: Exactness | None
    passes: ExactPasses | None = None
    can_take_leaves: bool = False


def check(model: LlamaModel, spec: EngineSpec, *, longest: int) -> SelfCheckResult:
    """Compare rows for this build, model, cache type and flash attention, and return the result.

    longest: longest draft in tokens.
    """
    findings = _measure(model, spec, longest, cache_per_slot=False)
    exactness, can_take_leaves = None, not spec.exact
    if findings is not None:
        exactness = findings.exactness(longest, spec.n_slots, spec.n_batch)
        can_take_leaves = can_take_leaves and (findings.leaves or not exactness.speculation)
        log.info("self-check of %s: results %s", spec.weights, _describe(exactness))
    is_exact_already = exactness is not None and all(
        (exactness.speculation, exactness.parallel, exactness.prompt_cache)
    )
    if not spec.exact or is_exact_already:
        return SelfCheckResult(exactness, can_take_leaves=can_take_leaves)
    if spec.n_slots > 1 and findings is not None:
        shared, findings = findings, _measure(model, spec, longest, cache_per_slot=True)
        if findings is not None:
            # The depth was measured with a shared cache.
            n_invariant = min(shared.n_invariant, findings.n_invariant)
            findings = replace(findings, n_invariant=n_invariant, depth=shared.depth)
    passes = ExactPasses.of(findings, longest, spec.n_batch)
    enforced = tuple(_list_restrictions(spec, passes))
    log.info("SPECD_EXACT restricts %s: %s", spec.weights, ", ".join(enforced))
    exactness = Exactness(speculation=True, parallel=True, prompt_cache=True, enforced=enforced)
    return SelfCheckResult(exactness, passes)


def _list_restrictions(spec: EngineSpec, passes: ExactPasses) -> list[str]:
    restrictions: list[str] = []
    drafted = spec.no_pair_reason != NoPair.DISABLED_BY_USER
    if drafted and not passes.drafts:
        restrictions.append(Enforced.NO_DRAFTS)
    if spec.n_slots > 1:
        restrictions.append(Enforced.CACHE_PER_SLOT)
        if not passes.n_shared:
            restrictions.append(Enforced.ONE_SLOT_AT_A_TIME)
    restrictions.append(
        Enforced.NARROW_PROMPTS if passes.can_reuse_all else Enforced.PROMPTS_IN_PIECES
    )
    return restrictions


def _describe(exactness: Exactness) -> str:
    kinds = ("speculation", "parallel", "prompt_cache")
    exact_kinds = ", ".join(kind for kind in kinds if getattr(exactness, kind))
    if not exact_kinds:
        return "depend on what else is in the pass"
    return f"do not depend on {exact_kinds}"


def _measure(
    model: LlamaModel, spec: EngineSpec, longest: int, *, cache_per_slot: bool
) -> Findings | None:
    """Return the findings; None if memory or time ran out, or the cache cannot be copied."""
    is_small = model.n_parameters < _LARGE
    depth = _depth(model, cache_per_slot=cache_per_slot)
    if depth is Depth.LONG_SLOT and not (is_small or spec.exact):
        # The check would read hundreds of tokens with a large model.
        return None
    widest = PROMPT_WIDTHS[0] if spec.exact else longest + 1
    if is_small:
        widest = max(spec.n_batch, longest + 1)
    n_tested = min(max(spec.n_slots, 1), MAX_SLOTS)
    n_slots = max(n_tested, 2, N_EXTRA_SLOTS + 1 if depth is Depth.MANY_SLOTS else 0)
    # Slots that share a cache share its cells, and only one of them has the widest pass.
    n_wide = widest if cache_per_slot else -(-widest // n_slots)
    n_leaves = _N_LEAVES if spec.drafter is not None and not cache_per_slot else 0
    try:
        with (
            model.native_log.restored(),
            closing(
                ProbeContext(
                    model,
                    n_ctx=N_HISTORY + n_wide + (N_EXTRA_TOKENS if depth is Depth.LONG_SLOT else 0),
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
            ) as probe,
        ):
            return measure(
                probe,
                n_slots=n_tested,
                longest=longest,
                widest=widest,
                depth=depth,
                n_single_rows=longest + 1 if is_small else FEW_SINGLE_ROWS,
                thorough=is_small and spec.exact,
                has_shared_cells=not cache_per_slot,
            )
    except ProbeTimeout:
        why = f"stopped after {_BUDGET_S} s; set SPECD_EXACT to run it to its end"
        log.info("self-check of %s: %s", spec.weights, why)
    except (LoadFailed, DecodeFailed) as error:
        log.warning("the self-check of %s failed: %s", spec.weights, error)
    return None


def _depth(model: LlamaModel, *, cache_per_slot: bool) -> Depth:
    """Return how the check fills more than 256 cells.

    Copies of a recurrent state are too large for many slots, so hybrid models read more tokens.
    """
    if cache_per_slot or model.is_stateful_only:
        return Depth.NONE
    return Depth.LONG_SLOT if model.is_recurrent else Depth.MANY_SLOTS
