"""The settings of a load, and the facts that it reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Number formats of a KV cache, as llama.cpp spells them.
KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
#: Most slots of one engine: llama.cpp's limit on sequences.
MAX_SLOTS = 256
#: Prefixes of the UUIDs of NVIDIA's GPUs and of their MIG instances.
NVIDIA_UUID = ("GPU-", "MIG-")


class Steering(StrEnum):
    """How an engine's drafts can be controlled."""

    NONE = "none"
    PER_REQUEST = "request"  # by a draft length that comes with the request
    PER_STEP = "step"  # by specd's controller, inside the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The settings of a load that every engine has.

    drafter_name, pair_source: of the drafter; "" without one, or if the engine chooses it.
    no_pair_reason, no_pair_detail: why there is no drafter, as a name and a sentence.
    n_slots: requests that are answered at the same time; 0 if unknown.
    acceptance_threshold: accepted ÷ drafted below which a request stops drafting; None: no limit.
    embeds: the engine returns vectors instead of answers.
    """

    drafter_name: str = ""
    pair_source: str = ""
    no_pair_reason: str = ""
    no_pair_detail: str = ""
    n_slots: int = 1
    acceptance_threshold: float | None = None
    embeds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSpec(LoadSpec):
    """A model on another server: it has no memory here, so it needs no placement.

    engine: the name of the engine that reaches it.  model: the model's name there.
    """

    engine: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec(LoadSpec):
    """The settings of a load on this machine; two equal specs may share one process.

    n_ctx: tokens per slot.  n_gpu_layers: −1 all, 0 CPU only.
    flash_attention: None lets llama.cpp decide.  kv_cache_type: f32, f16, bf16, q8_0, q4_0, ...
    trace_dir: the folder for traces of the controller's calls, "" for none.
    adapters: LoRA files, applied to the target.  projector: turns images into embeddings.
    main_gpu: the requested device, by its number among those of the daemon.
    max_draft: longest draft in tokens; None is the controller's limit.
    exact: the text for a seed must not depend on drafts, on other requests, or on the prompt cache.

    Set by placement:
    devices: the accelerators that the engine may see, in its order (NVIDIA's by UUID, others by
    llama.cpp's name); () means none, None all that llama.cpp finds.
    tensor_split: the share of the target's layers on each device; () is llama.cpp's choice.
    draft_device: the drafter's device, as an index into `devices`; None is the target's.
    draft_on_cpu: the drafter is in main memory, wherever the target is.
    """

    weights: str
    drafter: str | None = None
    n_ctx: int = 4096
    n_batch: int = 512
    n_gpu_layers: int = -1
    main_gpu: int | None = None
    n_threads: int = 0
    use_mmap: bool | None = None
    flash_attention: bool | None = None
    kv_cache_type: str = "f16"
    trace_dir: str = ""
    adapters: tuple[str, ...] = ()
    projector: str | None = None
    use_mlock: bool = False
    max_draft: int | None = None
    exact: bool = False
    devices: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] = ()
    draft_device: int | None = None
    draft_on_cpu: bool = False


def smallest_ctx(*, sees: bool) -> int:
    """Return the shortest context in tokens: Ollama's 4, or what one image may need.

    sees: whether the model has a projector.
    """
    return 2048 if sees else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """The memory that one model takes.

    device: the accelerator's name, or "CPU".  vram_bytes: the part of total_bytes on accelerators.
    by_device: (llama.cpp's name of a device, bytes there).
    weights_bytes, cache_bytes, scratch_bytes: parts of total_bytes; cache_bytes includes recurrent
    states.
    """

    device: str
    total_bytes: int
    vram_bytes: int
    by_device: tuple[tuple[str, int], ...] = ()
    weights_bytes: int = 0
    cache_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """A model to load without its weights, to measure what its contexts would take.

    is_drafter: the spec's drafter, else its target.  n_ctxs: contexts to measure.
    architecture, n_vocab: as in the file's header.
    """

    spec: EngineSpec
    is_drafter: bool
    architecture: str
    n_vocab: int
    n_ctxs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMemory:
    """The memory of one context of a model in main memory, as llama.cpp allocates it.

    n_ctx: tokens per slot.  layers: (layer, bytes of its cache and recurrent states).
    n_cells: cells of all caches with a mask.  scratch_bytes: compute buffer.
    results_bytes: rows of logits and vectors.
    """

    n_ctx: int
    layers: tuple[tuple[int, int], ...]
    n_cells: int
    scratch_bytes: int
    results_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """The duration of passes, measured at load.

    target_s: (rows of a target pass, its seconds).
    draft_step_s: seconds for one drafted token; 0 without a drafter.
    """

    target_s: tuple[tuple[int, float], ...] = ()
    draft_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """The conditions that cannot change the text for a seed.

    speculation: drafts and their length.  parallel: requests in other slots, now or earlier.
    prompt_cache: whether the prompt is processed anew or found in the cache.
    enforced: what SPECD_EXACT changed to make all three true, see `Enforced`.
    """

    speculation: bool
    parallel: bool
    prompt_cache: bool
    enforced: tuple[str, ...] = ()


class Enforced(StrEnum):
    """A restriction that SPECD_EXACT adds if the rows of a pass depend on the other rows."""

    NO_DRAFTS = "no_drafts"
    CACHE_PER_SLOT = "cache_per_slot"
    ONE_SLOT_AT_A_TIME = "one_slot_at_a_time"
    NARROW_PROMPTS = "narrow_prompts"
    PROMPTS_IN_PIECES = "prompts_in_pieces"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The facts that an engine reports after a load.

    target: no bytes if the model is on another server; its device then names the engine.
    drafter: None if there is none; no_pair_reason and no_pair_detail then say why.
    plain_tokens_per_s: measured speed without drafts.
    exact: None if it could not be measured, and for embeddings.
    threshold: as in `SpeculationStats`, by the costs measured at load.
    steering: how the engine's drafts can be controlled.
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
    steering: Steering = Steering.PER_STEP
