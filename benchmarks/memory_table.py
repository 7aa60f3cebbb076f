"""Compare memory estimates before a load with llama.cpp's report after it.

    python -m benchmarks.memory_table [--large]

Each model and way to load it has a row: weights, cache, scratch and total in MiB, with the
difference in MiB.  --large adds dense models of 0.5 and 1 billion parameters, padded from the demo.

The table covers main memory only.  The estimates for a GPU assume that its scratch equals a CPU's
(masks, rows and logits of the same pass), that the padding of its buffers is negligible, and that
main memory keeps the masks and the input rows.  A driver's own memory is not included.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specd.bench import synthetic
from specd.core import ContextMemory, EngineSpec, ModelMemory, SimulatedLoad
from specd.engine import loader, simulation
from specd.placement import MemoryCorrections
from specd.placement.estimate import Footprint
from specd.placement.memory_estimator import MemoryEstimator
from specd.store.shape import read_shape
from tests.gguf_for_engines import DEMO, small_models

MIB: Final = 2**20

#: Ways to load a model.
WAYS: Final = (
    EngineSpec(weights="", n_ctx=512),
    EngineSpec(weights="", n_ctx=2048, n_slots=3, kv_cache_type="q8_0"),
    EngineSpec(weights="", n_ctx=2048, n_slots=2, n_batch=256, flash_attention=False),
    EngineSpec(weights="", n_ctx=1000, n_slots=5, n_batch=1024, kv_cache_type="bf16"),
    EngineSpec(weights="", n_ctx=2048, kv_cache_type="q4_0", n_batch=2048, flash_attention=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    spec: EngineSpec
    estimated: Footprint
    measured: ModelMemory

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Return estimated and measured bytes for each part."""
        estimated, measured = self.estimated, self.measured
        weights = estimated.weights_bytes + estimated.extra_bytes
        scratch = estimated.device_scratch_bytes + estimated.host_scratch_bytes
        return {
            "weights": (weights, measured.weights_bytes),
            "cache": (estimated.cache_bytes, measured.cache_bytes),
            "scratch": (scratch, measured.scratch_bytes),
            "all": (estimated.total_bytes, measured.total_bytes),
        }

    @property
    def way(self) -> str:
        spec = self.spec
        flash = {None: "auto", True: "on", False: "off"}[spec.flash_attention]
        return f"{spec.n_slots}x{spec.n_ctx} {spec.kv_cache_type} b{spec.n_batch} fa {flash}"


def rows(name: str, spec: EngineSpec) -> Iterator[Row]:
    """Load the model as the engine does, and yield its row and its drafter's."""
    spec = replace(spec, n_threads=1)
    estimator = MemoryEstimator(read_shape, MemoryCorrections(None), simulate)
    estimator.simulate([spec])
    estimated = estimator.of(spec)
    if spec.embeds:
        encoder = loader.load_encoder(spec, lambda _: None)
        yield Row(name=name, spec=spec, estimated=estimated[0], measured=encoder.facts.target)
        encoder.encoder.close()
        return
    loaded = loader.load_pair(spec, lambda _: None)
    yield Row(name=name, spec=spec, estimated=estimated[0], measured=loaded.facts.target)
    if loaded.facts.drafter is not None and estimated[1] is not None:
        drafts = f"{name}, drafter"
        yield Row(name=drafts, spec=spec, estimated=estimated[1], measured=loaded.facts.drafter)
    for backend in (loaded.target, loaded.drafter):
        if backend is not None:
            backend.close()


def simulate(loads: Sequence[SimulatedLoad]) -> list[list[ContextMemory] | None]:
    """Simulate in this process, as `runner.simulate` does in another."""
    return [simulation.measure(load) for load in loads]


def large_models() -> Iterator[tuple[str, EngineSpec]]:
    for count in ("0.5b", "1b"):
        path = synthetic.cached(DEMO / "target.gguf", synthetic.parse_count(count))
        yield count, EngineSpec(weights=str(path), drafter=str(DEMO / "drafter.gguf"))


def loaded_by(way: EngineSpec, model: EngineSpec) -> EngineSpec:
    return replace(
        way, weights=model.weights, drafter=model.drafter, drafter_name="d", embeds=model.embeds
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="memory, estimated and measured")
    parser.add_argument("--large", action="store_true", help="models of real size as well")
    large = parser.parse_args(arguments).large
    with tempfile.TemporaryDirectory() as folder:
        for name, model in [*small_models(Path(folder)), *(large_models() if large else ())]:
            for way in WAYS:
                for row in rows(name, loaded_by(way, model)):
                    print(_line(row), flush=True)


def _line(row: Row) -> str:
    parts = (
        f"{part} {estimated / MIB:8.2f} {measured / MIB:8.2f} {(estimated - measured) / MIB:+7.2f}"
        for part, (estimated, measured) in row.parts.items()
    )
    return f"{row.name:16s} {row.way:24s} {'  '.join(parts)}"


if __name__ == "__main__":
    main()
