"""`python -m specd.bench.peer_xllamacpp`: the server of the xllamacpp wheel (the extra `bench`).

Without arguments it prints which build it is.  With a port and a `PeerLoad` as JSON it serves until
it is killed.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

import xllamacpp

from specd.bench.peer_binary import PeerLoad
from specd.core import KV_CACHE_TYPES


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print(build())  # noqa: T201 - the answer
        return 0
    port, load = arguments
    try:
        server = xllamacpp.Server(parameters(PeerLoad(**json.loads(load)), int(port)))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    signal.pause()
    del server
    return 0


def build() -> str:
    """Return version, compiler and instruction sets of the wheel's build."""
    info = xllamacpp.BUILD_INFO
    known = "" if info["commit"] == "unknown" else f", llama.cpp {info['commit']}"
    cpu = xllamacpp.get_system_info().partition("CPU : ")[2].split("|")
    sets = [name.strip() for name, _, on in (part.partition("=") for part in cpu) if "1" in on]
    return (
        f"server of the wheel xllamacpp {xllamacpp.__version__}{known},"
        f" built with {info['compiler']} for {' '.join(sets)}"
    )


def parameters(load: PeerLoad, port: int) -> Any:
    """Return the parameters that correspond to `PeerLoad.arguments`."""
    params = xllamacpp.CommonParams()
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.ui = False
    params.fit_params = False
    params.cache_ram_mib = 0
    params.model.path = load.target
    params.n_parallel = load.n_slots
    params.n_ctx = load.n_ctx * load.n_slots
    params.kv_unified = True
    params.n_gpu_layers = load.n_layers
    attention = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = {
        None: attention.LLAMA_FLASH_ATTN_TYPE_AUTO,
        True: attention.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        False: attention.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    }[load.flash_attention]
    kv_type = _kv_type(load.kv_type)
    params.cache_type_k = params.cache_type_v = kv_type
    if load.n_threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = load.n_threads
    if load.drafter is not None:
        _draft(params.speculative, load, kv_type)
    return params


def _draft(speculative: Any, load: PeerLoad, kv_type: Any) -> None:
    kinds = xllamacpp.common_speculative_type
    speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    draft = speculative.draft
    draft.mparams.path = load.drafter
    draft.n_max, draft.n_min, draft.p_min = load.n_draft_max, 0, 0.0
    draft.n_gpu_layers = load.n_layers
    draft.cache_type_k = draft.cache_type_v = kv_type
    if n_threads := load.n_threads:
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = n_threads


def _kv_type(name: str) -> Any:
    """Return the ggml type.  Raises RuntimeError for a type that a KV cache cannot have."""
    if name not in KV_CACHE_TYPES:
        raise RuntimeError(f"Unsupported cache type: {name}")
    wanted = f"GGML_TYPE_{name}".upper()
    return next(t for t in xllamacpp.ggml_type if t.name.upper() == wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
