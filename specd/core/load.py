"""How an engine process loads, and what came true of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Number formats of a KV cache, as llama.cpp spells them.
KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
#: Most slots that one engine can have: llama.cpp's limit on sequences.
MAX_SLOTS = 256
#: How the names of NVIDIA's GPUs begin, and of parts of them; others are llama.cpp's own.
NVIDIA_UUID = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that decides how an engine process loads; two equal specs may share one process.

    n_ctx: tokens per slot.  n_gpu_layers: −1 all, 0 CPU only.
    flash_attention: None lets llama.cpp decide.  kv_cache_type: f32, f16, bf16, q8_0, q4_0, ...
    acceptance_threshold: accepted ÷ drafted below which a request stops drafting; None: no limit.
    trace_dir: where the controller's calls are written down, "" for nowhere.
    adapters: LoRA files, applied to the target.  projector: what turns images into embeddings.
    embeds: the engine gives vectors instead of answers.
    main_gpu: the device that the caller asked for, by its number among those of the daemon.
    max_draft: no draft is longer; None is the controller's own bound.
    exact: the text for a seed must not depend on drafts, on other requests, or on the prompt cache.

    What placement decides: devices are the accelerators that the engine may see, in its own order
    (NVIDIA's by UUID, others by llama.cpp's name); () is none, None whatever llama.cpp finds.
    tensor_split: the share of the target's layers on each of them, () is llama.cpp's choice.
    draft_device: the drafter's, by its place in `devices`; None is beside the target.
    draft_on_cpu: the drafter lies in main memory, wherever the target does.
    """

    weights: str
    drafter: str | None = None
    drafter_name: str = ""
    pair_source: str = ""
    no_pair_reason: str = ""
    no_pair_detail: str = ""
    n_ctx: int = 4096
    n_slots: int = 1
    n_batch: int = 512
    n_gpu_layers: int = -1
    main_gpu: int | None = None
    n_threads: int = 0
    use_mmap: bool | None = None
    flash_attention: bool | None = None
    kv_cache_type: str = "f16"
    acceptance_threshold: float | None = None
    trace_dir: str = ""
    adapters: tuple[str, ...] = ()
    projector: str | None = None
    embeds: bool = False
    use_mlock: bool = False
    max_draft: int | None = None
    exact: bool = False
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    draft_device: int | None = None
    draft_on_cpu: bool = False


def smallest_ctx(*, sees: bool) -> int:
    """No context is shorter: Ollama's own 4, or what one image may need (contract 2.4)."""
    return 2048 if sees else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Bytes one model took, by where they lie; `device` names the accelerator or "CPU".

    by_device: llama.cpp's name of each device, and the bytes there.  weights, cache (with running
    states) and scratch are parts of total_bytes.
    """

    device: str
    total_bytes: int
    vram_bytes: int
    by_device: tuple[tuple[str, int], ...] = ()
    weights_bytes: int = 0
    cache_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """What passes took when they were measured at load.

    target_s: (rows of a target pass, its seconds).  draft_step_s: one drafted token; 0 without a
    drafter.
    """

    target_s: tuple[tuple[int, float], ...] = ()
    draft_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Which conditions cannot change the text for a seed.

    speculation: whether and how far anything is drafted.  parallel: requests in other slots, at the
    same time or before.  prompt_cache: whether the prompt was read anew or found in the cache.
    enforced: what SPECD_EXACT changed to make all three true, see `Enforced`.
    """

    speculation: bool
    parallel: bool
    prompt_cache: bool
    enforced: tuple[str, ...] = ()


class Enforced(StrEnum):
    """What SPECD_EXACT costs a model where the self-check finds that rows depend on their pass."""

    NO_DRAFTS = "no_drafts"
    CACHE_PER_SLOT = "cache_per_slot"
    ONE_SLOT_AT_A_TIME = "one_slot_at_a_time"
    NARROW_PROMPTS = "narrow_prompts"
    PROMPTS_IN_PIECES = "prompts_in_pieces"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What came true after a load.  drafter None: the reason and its sentence say why.

    exact: None where it could not be found out, and for a model that gives vectors.
    threshold: as in `SpeculationStats`, by the costs measured at load.
    """

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    target: ModelMemory
    drafter: ModelMemory | None = None
    no_pair_reason: str = ""
    no_pair_detail: str = ""
    plain_tokens_per_s: float = 0.0
    costs: PassCosts = PassCosts()
    exact: Exactness | None = None
    threshold: float | None = None
