"""The models and sizes that a peer loads, and the matching llama-server options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Takes every layer there is, in every version of llama.cpp.
ALL_LAYERS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """The configuration of one peer server.

    drafter: None decodes plainly.  n_draft_max: at least 1 with a drafter, else 0.
    p_min: a draft ends before a token with a lower probability; 0, llama-server's default, always
    drafts n_draft_max tokens.  n_threads: 0 leaves the number to the server.
    n_threads_draft: 0 is n_threads.  n_ctx: tokens per slot.  n_gpu_layers: −1 is all.
    """

    target: str
    drafter: str | None = None
    n_draft_max: int = 0
    p_min: float = 0.0
    n_threads: int = 0
    n_threads_draft: int = 0
    n_ctx: int = 4096
    n_slots: int = 1
    kv_type: str = "f16"
    flash_attention: bool | None = None
    n_gpu_layers: int = -1

    def __post_init__(self) -> None:
        assert (self.drafter is None) == (self.n_draft_max == 0), "a drafter drafts"

    @property
    def n_drafting_threads(self) -> int:
        return self.n_threads_draft or self.n_threads

    @property
    def n_layers(self) -> int:
        return ALL_LAYERS if self.n_gpu_layers < 0 else self.n_gpu_layers

    def arguments(self, port: int, knows: Callable[[str], bool]) -> list[str]:
        """Return the arguments of llama-server.  knows: whether this build has an option."""
        attention = {None: "auto", True: "on", False: "off"}[self.flash_attention]
        n_layers = str(self.n_layers)
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--model", self.target]
        arguments += ["--parallel", str(self.n_slots), "--ctx-size", str(self.n_ctx * self.n_slots)]
        arguments += ["--cache-type-k", self.kv_type, "--cache-type-v", self.kv_type]
        arguments += ["--flash-attn", attention, "--n-gpu-layers", n_layers]
        if self.n_threads:
            n_threads = str(self.n_threads)
            arguments += ["--threads", n_threads, "--threads-batch", n_threads]
        if self.drafter is not None:
            arguments += self._draft_arguments(knows)
        # One cache for all slots, as in specd: drafts of unequal length then share one pass.
        optional = (["--kv-unified"], ["--no-ui"], ["--fit", "off"], ["--cache-ram", "0"])
        for words in optional:
            arguments += words if knows(words[0]) else []
        if not knows("--no-ui"):
            arguments.append("--no-webui")
        return arguments

    def _draft_arguments(self, knows: Callable[[str], bool]) -> list[str]:
        assert self.drafter is not None
        arguments = ["--model-draft", self.drafter, "--n-gpu-layers-draft", str(self.n_layers)]
        arguments += ["--cache-type-k-draft", self.kv_type, "--cache-type-v-draft", self.kv_type]
        if self.n_drafting_threads:
            n_threads = str(self.n_drafting_threads)
            arguments += ["--threads-draft", n_threads, "--threads-batch-draft", n_threads]
        # Newer builds draft only with --spec-type; older builds have other defaults for minima.
        n_max, p_min = str(self.n_draft_max), f"{self.p_min:g}"
        if knows("--spec-draft-n-max"):
            arguments += ["--spec-type", "draft-simple", "--spec-draft-n-max", n_max]
            arguments += ["--spec-draft-n-min", "0", "--spec-draft-p-min", p_min]
        else:
            arguments += ["--draft-max", n_max, "--draft-min", "0", "--draft-p-min", p_min]
        return arguments
