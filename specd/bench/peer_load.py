"""What a peer is asked to load, and how that is said to llama-server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Takes every layer there is, in every version of llama.cpp.
ALL_LAYERS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """n_threads: 0 leaves it to the server.  n_ctx: tokens per slot.  n_gpu_layers: −1 is all.

    drafter None decodes plainly; with one, n_draft_max is at least 1.  n_threads_draft: 0 is as
    many as the target has.  p_min: a draft ends before a token that the drafter finds less likely;
    0, llama-server's own choice, always drafts to the full.
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
        """The command line of llama-server; knows: whether this build has an option."""
        attention = {None: "auto", True: "on", False: "off"}[self.flash_attention]
        n_layers = str(self.n_layers)
        said = ["--host", "127.0.0.1", "--port", str(port), "--model", self.target]
        said += ["--parallel", str(self.n_slots), "--ctx-size", str(self.n_ctx * self.n_slots)]
        said += ["--cache-type-k", self.kv_type, "--cache-type-v", self.kv_type]
        said += ["--flash-attn", attention, "--n-gpu-layers", n_layers]
        if self.n_threads:
            n_threads = str(self.n_threads)
            said += ["--threads", n_threads, "--threads-batch", n_threads]
        if self.drafter is not None:
            said += self._draft_arguments(knows)
        # One cache for all slots, as specd has it: drafts of unequal length stay one pass.
        optional = (["--kv-unified"], ["--no-ui"], ["--fit", "off"], ["--cache-ram", "0"])
        for words in optional:
            said += words if knows(words[0]) else []
        if not knows("--no-ui"):
            said.append("--no-webui")
        return said

    def _draft_arguments(self, knows: Callable[[str], bool]) -> list[str]:
        assert self.drafter is not None
        said = ["--model-draft", self.drafter, "--n-gpu-layers-draft", str(self.n_layers)]
        said += ["--cache-type-k-draft", self.kv_type, "--cache-type-v-draft", self.kv_type]
        if self.n_drafting_threads:
            n_threads = str(self.n_drafting_threads)
            said += ["--threads-draft", n_threads, "--threads-batch-draft", n_threads]
        # Newer builds draft only if told so, by name; older ones had minima of their own.
        n_max, p_min = str(self.n_draft_max), f"{self.p_min:g}"
        if knows("--spec-draft-n-max"):
            said += ["--spec-type", "draft-simple", "--spec-draft-n-max", n_max]
            said += ["--spec-draft-n-min", "0", "--spec-draft-p-min", p_min]
        else:
            said += ["--draft-max", n_max, "--draft-min", "0", "--draft-p-min", p_min]
        return said
