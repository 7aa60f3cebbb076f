"""What `specd pairs` says of a store, and of what was learned of its pairs on this machine."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specd.cli import pairs
from specd.cli.app import app
from specd.cli.pairs import Row
from specd.core import (
    TEMPERATURE_BANDS,
    BandHistory,
    Drafter,
    EngineSpec,
    ModelRef,
    NoPair,
    Pair,
    PairHistory,
)
from specd.engine.speculative.controller import temperature_band
from specd.pairs import HISTORY_FILE, Entry, History, Key
from specd.placement import Devices, machine_name
from specd.runner import probe
from tests.gguf_files import OllamaStore, write_llama

HERE = machine_name(Devices(probe())())
TARGET = ModelRef(name="big:70b", full_name="", digest="", weights=Path("w"))


def band(
    drafter: str = "model",
    number: int = 2,
    *,
    gain: float | None = 1.415,
    n_accepted: int = 78,
    parked: str = "",
) -> BandHistory:
    return BandHistory(
        drafter=drafter,
        band=number,
        gain=gain,
        n_requests=5,
        n_drafted=100,
        n_accepted=n_accepted,
        parked=parked,
    )


@pytest.fixture
def learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes down what was learned of the store's one model, which has its own draft."""
    store = OllamaStore(tmp_path / "models")
    draft = write_llama(tmp_path / "d.gguf", seed=1)
    store.add("big", weights=write_llama(tmp_path / "t.gguf"), draft=draft)
    monkeypatch.setenv("OLLAMA_MODELS", str(store.root))
    monkeypatch.setenv("SPECD_STATE_DIR", str(tmp_path / "state"))
    now = [0.0]

    def write(*bands: BandHistory, machine: str = HERE, threads: int = 1) -> None:
        spec = EngineSpec(
            weights=str(store.weights_path("big")),
            drafter=str(store.weights_path("big", "draft")),
            n_threads=threads,
        )
        now[0] += 1
        history = History(tmp_path / "state" / HISTORY_FILE, unix_time=lambda: now[0])
        history.put(Key.of(spec, machine), PairHistory(bands=bands, device="CPU"))
        assert history.save()

    return write


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pairs", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def gained() -> list[list[object]]:
    [row] = json.loads(said("--json"))
    return [[b["drafter"], b["temperature"], b["gain"]] for b in row["gained"]["bands"]]


def test_the_table_says_who_drafts_and_why_nobody_does() -> None:
    drafter = Drafter(name="small:1b", weights=Path("d"), source="registry")
    rule = "registry: big:70b*"
    detail = "No rule names a drafter for big:70b."
    console = Console(file=io.StringIO(), width=200)
    console.print(
        pairs.table_of(
            [
                Row(model="big:70b", pair=Pair(target=TARGET, drafter=drafter, rule=rule)),
                Row(
                    model="big:70b",
                    pair=Pair(target=TARGET, reason=NoPair.NOT_FOUND, detail=detail),
                ),
                Row(model="broken:1b", problem="the manifest cannot be read"),
            ],
            console.width,
        )
    )
    assert isinstance(console.file, io.StringIO)
    _, paired, alone, broken = console.file.getvalue().splitlines()
    assert paired.split() == ["big:70b", "small:1b", "registry", *rule.split()]
    assert alone.rstrip().endswith(detail)
    assert broken.split(maxsplit=1)[0] == "broken:1b"
    assert "cannot be read" in broken


def test_the_table_fits_a_hundred_columns_with_the_names_that_people_have() -> None:
    name = "hf.co/bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_M"
    rows = [
        Row(
            model=name,
            pair=Pair(
                target=TARGET,
                drafter=Drafter(
                    name="hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0",
                    weights=Path("d"),
                    source="registry",
                ),
                rule="~/.config/specd/pairs.toml: */*llama-3.1-70b*",
            ),
            learned=Entry(
                key=Key.of(EngineSpec(weights=__file__, n_threads=1), HERE),
                history=PairHistory(bands=(band(),), device="CPU"),
                used_at=1.0,
            ),
        ),
        Row(model="big:70b", pair=Pair(target=TARGET, reason=NoPair.NOT_FOUND, detail="w " * 60)),
    ]
    console = Console(file=io.StringIO(), width=100)
    console.print(pairs.table_of(rows, console.width))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert "GAINED HERE, OR WHY NONE" in lines[0]
    assert len(lines) < 16


def test_a_pair_has_a_line_for_each_band_that_was_tried(learn: Callable[..., None]) -> None:
    assert json.loads(said("--json"))[0]["gained"] is None
    learn(
        band("model", 0),
        band("model", 1, gain=None),
        band("lookup", 2, gain=0.9, n_accepted=20, parked="low_acceptance"),
        band("model", 9),
    )
    _, first, second, *_ = said().splitlines()
    assert "1.42× at 0 (78% of 100 kept)" in first
    assert "prompt lookup 0.90× at 0.5 to 1 (20% of 100 kept, resting: low_acceptance)" in second
    assert gained() == [["model", "0", 1.415], ["lookup", "0.5 to 1", 0.9]]


def test_the_way_it_was_loaded_last_is_shown(learn: Callable[..., None]) -> None:
    learn(band(gain=1.1), threads=1)
    learn(band(gain=1.2), threads=2)
    assert gained() == [["model", "0.5 to 1", 1.2]]
    learn(band(gain=1.3), threads=1)
    assert gained() == [["model", "0.5 to 1", 1.3]]


def test_the_figures_of_another_machine_are_not_shown(learn: Callable[..., None]) -> None:
    learn(band(), machine="another")
    assert json.loads(said("--json"))[0]["gained"] is None


@pytest.mark.parametrize("model", [(), ("big",)])
def test_what_was_learned_can_be_forgotten(
    learn: Callable[..., None], model: tuple[str, ...]
) -> None:
    learn(band())
    learn(band(), threads=2)
    assert said(*model, "--forget") == "forgot 2 pairs\n"
    assert json.loads(said("--json"))[0]["gained"] is None
    assert said("--forget") == "forgot 0 pairs\n"


def test_another_models_past_is_left_alone(learn: Callable[..., None], tmp_path: Path) -> None:
    learn(band())
    other = write_llama(tmp_path / "other.gguf", seed=7)
    OllamaStore(tmp_path / "models").add("other", weights=other)
    assert said("other", "--forget") == "forgot 0 pairs\n"
    assert said("big", "--forget") == "forgot 1 pair\n"


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.5, 0.8, 1.0, 1.7])
def test_the_bands_are_called_by_the_temperatures_in_them(temperature: float) -> None:
    least, _, most = TEMPERATURE_BANDS[temperature_band(temperature)].partition(" to ")
    if least.startswith("above "):
        assert temperature > float(least.removeprefix("above "))
    else:
        assert temperature in {float(least), float(most or least)} or (
            float(least) < temperature < float(most)
        )
