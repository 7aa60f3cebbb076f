"""`specd pairs show`: its rows, sentences and JSON."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from specd.cli.app import app
from specd.cli.pairs_show import Row, print_rows
from specd.core import (
    TEMPERATURE_BANDS,
    BandHistory,
    Drafter,
    EngineSpec,
    LocalModel,
    NoPair,
    Pair,
    PairHistory,
    SkippedDrafter,
)
from specd.engine.speculative.controller import temperature_band
from specd.errors import InvalidRequest
from specd.pairs import HISTORY_FILE, History, HistoryEntry, HistoryKey
from specd.placement import Devices, machine_name
from specd.runner import probe
from tests.gguf_files import OllamaStore, write_llama
from tests.pairs.sparse_stores import SparseStore, write_sparse

HERE = machine_name(Devices(probe())())
TARGET = LocalModel(name="big:70b", full_name="", digest="", weights=Path("w"))


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
    """Return a function that writes the history of the store's only model, which has a DRAFT."""
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
        history.put(HistoryKey.of(spec, machine), PairHistory(bands=bands, device="CPU"))
        assert history.save()

    return write


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pairs", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def gained() -> list[list[object]]:
    [row] = json.loads(said("--json"))
    return [[b["drafter"], b["temperature"], b["gain"]] for b in row["gained"]["bands"]]


DRAFTER = Drafter(name="small:1b", weights=Path("d"), source="registry")
RULE = "registry: big:70b*"
DETAIL = "No rule names a drafter for big:70b."
ROWS = [
    Row(model="big:70b", pair=Pair(target=TARGET, drafter=DRAFTER, rule=RULE)),
    Row(model="big:70b", pair=Pair(target=TARGET, reason=NoPair.NOT_FOUND, detail=DETAIL)),
    Row(model="broken:1b", problem="the manifest cannot be read"),
]


def printed(rows: list[Row], width: int, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    print_rows(console, rows)
    assert isinstance(console.file, io.StringIO)
    return re.sub("\x1b[^m]*m", "", console.file.getvalue()).splitlines()


def test_a_pipe_gets_a_line_per_model() -> None:
    header, *lines = printed(ROWS, 1000, terminal=False)
    assert [re.split("   +", line) for line in (header, *lines)] == [
        ["MODEL", "DRAFTER", "CHOSEN BY", "RULE", "GAIN HERE, OR WHY NONE"],
        ["big:70b", "small:1b", "registry", RULE, "not used yet"],
        ["big:70b", "-", "-", "-", DETAIL],
        ["broken:1b", "-", "-", "-", "the manifest cannot be read"],
    ]
    assert not [line for line in (header, *lines) if line.endswith(" ")]


def test_a_terminal_gets_sentences_below_the_rows() -> None:
    wordy = Row(
        model="big:70b", pair=Pair(target=TARGET, reason=NoPair.UNREADABLE, detail="w " * 60)
    )
    lines = printed([*ROWS, wordy], 80, terminal=True)
    assert lines[:7] == [
        "MODEL      DRAFTER   CHOSEN BY  RULE",
        f"big:70b    small:1b  registry   {RULE}",
        "  not used yet",
        "big:70b    -         -          -",
        f"  {DETAIL}",
        "broken:1b  -         -          -",
        "  the manifest cannot be read",
    ]
    assert len(lines) == 10  # of 120 letters, two lines
    assert max(map(len, lines)) <= 80


def test_names_too_long_for_columns_are_stacked() -> None:
    name = "hf.co/bartowski/Meta-Llama-3.1-70B-Instruct-GGUF:Q4_K_M"
    drafter = "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"
    rule = "~/.config/specd/pairs.toml: */*llama-3.1-70b*"
    row = Row(
        model=name,
        pair=Pair(
            target=TARGET,
            drafter=Drafter(name=drafter, weights=Path("d"), source="registry"),
            rule=rule,
        ),
        learned=HistoryEntry(
            key=HistoryKey.of(EngineSpec(weights=__file__, n_threads=1), HERE),
            history=PairHistory(bands=(band(),), device="CPU"),
            used_at=1.0,
        ),
    )
    assert printed([row, ROWS[1]], 80, terminal=True) == [
        "MODEL",
        name,
        f"  drafter: {drafter} (registry)",
        f"  rule: {rule}",
        "  draft model 1.42× at temperature 0.5 to 1 (78% of 100 tokens accepted)",
        "big:70b",
        f"  {DETAIL}",
    ]


def test_a_pair_without_measurements_says_so(learn: Callable[..., None]) -> None:
    assert said().splitlines()[1].endswith("not used yet")
    learn(band(gain=None))
    assert said().splitlines()[1].endswith("nothing measured yet")


def test_a_pair_has_a_line_per_measured_band(learn: Callable[..., None]) -> None:
    assert json.loads(said("--json"))[0]["gained"] is None
    learn(
        band("model", 0),
        band("model", 1, gain=None),
        band("lookup", 2, gain=0.9, n_accepted=20, parked="low_acceptance"),
        band("model", 9),
    )
    assert (
        "draft model 1.42× at temperature 0 (78% of 100 tokens accepted);"
        " prompt lookup 0.90× at temperature 0.5 to 1"
        " (20% of 100 tokens accepted, parked: low_acceptance)\n"
    ) in said()
    assert gained() == [["model", "0", 1.415], ["lookup", "0.5 to 1", 0.9]]


def test_a_skipped_drafter_is_shown_with_its_next_try(
    learn: Callable[..., None], tmp_path: Path
) -> None:
    learn(replace(band(gain=0.8, n_accepted=40), n_requests=30, n_drafted=400))
    history = History(tmp_path / "state" / HISTORY_FILE)
    [entry] = history.entries()
    for _ in range(57):
        history.count_answer(entry.key.pair, 0)
    assert history.save()
    assert (
        "The drafter big:latest (its own draft) made big:latest slower here: at best 0.80 times the"
        " plain speed over 30 answers, 10% of 400 drafted tokens accepted. It is tried again after"
        " 143 more answers, or after `specd pairs big:latest --forget`.\n"
    ) in said()
    [row] = json.loads(said("--json"))
    assert row["passed_over"] == [
        {
            "drafter": "big:latest (its own draft)",
            "gain": 0.8,
            "n_requests": 30,
            "draft_n": 400,
            "draft_n_accepted": 40,
            "tried_again_after_answers": 143,
            "n_retries": 0,
        }
    ]
    assert said("--forget") == "forgot 1 pair\n"
    assert json.loads(said("--json"))[0]["passed_over"] == []


def test_a_skipped_drafter_is_shown_below_its_replacement() -> None:
    lost = SkippedDrafter(
        name="tiny:1b",
        weights=Path("t"),
        gain=0.8,
        n_requests=40,
        n_drafted=400,
        n_accepted=40,
        n_answers_left=143,
        n_retries=0,
        detail="The drafter tiny:1b made big:70b slower here.",
    )
    pairs = [
        Pair(target=TARGET, drafter=DRAFTER, skipped_drafters=(lost,)),
        Pair(
            target=TARGET, reason=NoPair.DOES_NOT_PAY, detail=lost.detail, skipped_drafters=(lost,)
        ),
    ]
    _, *lines = printed([Row(model="big:70b", pair=p) for p in pairs], 1000, terminal=False)
    assert [re.split("   +", line)[-1] for line in lines] == [
        f"not used yet; {lost.detail}",
        lost.detail,
    ]


def test_the_last_used_entry_is_shown(learn: Callable[..., None]) -> None:
    learn(band(gain=1.1), threads=1)
    learn(band(gain=1.2), threads=2)
    assert gained() == [["model", "0.5 to 1", 1.2]]
    learn(band(gain=1.3), threads=1)
    assert gained() == [["model", "0.5 to 1", 1.3]]


def test_the_history_of_another_machine_is_not_shown(learn: Callable[..., None]) -> None:
    learn(band(), machine="another")
    assert json.loads(said("--json"))[0]["gained"] is None


@pytest.mark.parametrize("model", [(), ("big",)])
def test_forget_deletes_the_history(learn: Callable[..., None], model: tuple[str, ...]) -> None:
    learn(band())
    learn(band(), threads=2)
    assert said(*model, "--forget") == "forgot 2 pairs\n"
    assert json.loads(said("--json"))[0]["gained"] is None
    assert said("--forget") == "forgot 0 pairs\n"


def test_forget_keeps_the_history_of_other_models(
    learn: Callable[..., None], tmp_path: Path
) -> None:
    learn(band())
    other = write_llama(tmp_path / "other.gguf", seed=7)
    OllamaStore(tmp_path / "models").add("other", weights=other)
    assert said("other", "--forget") == "forgot 0 pairs\n"
    assert said("big", "--forget") == "forgot 1 pair\n"


def test_a_pattern_selects_the_models_that_match(
    learn: Callable[..., None], tmp_path: Path
) -> None:
    learn(band())
    store = OllamaStore(tmp_path / "models")
    for i, name in enumerate(("other:1b", "other:7b")):
        store.add(name, weights=write_llama(tmp_path / f"{i}.gguf", seed=7 + i))
    assert [row["model"] for row in json.loads(said("o*", "--json"))] == ["other:1b", "other:7b"]
    assert said("o*", "--forget") == "forgot 0 pairs\n"
    assert said("*", "--forget") == "forgot 1 pair\n"
    with pytest.raises(InvalidRequest, match=r"no model on disk matches x\*"):
        said("x*")


def test_options_may_precede_the_command(learn: Callable[..., None]) -> None:
    learn(band())
    assert said("--json", "suggest") == said("suggest", "--json")
    assert json.loads(said("--json", "big")) == json.loads(said("big", "--json"))
    result = CliRunner().invoke(app, ["pairs", "--forget", "suggest"])
    assert (result.exit_code, "--forget" in result.output) == (2, True)


def test_a_damaged_model_is_reported_once(
    learn: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learn(band())
    store = OllamaStore(tmp_path / "models")
    store.add("broken", weights=write_llama(tmp_path / "b.gguf", seed=9))
    SparseStore(store.root).put(
        "lonely", write_sparse(tmp_path / "l.gguf", 4e9)
    )  # without a DRAFT, so all installed models are searched
    store.manifest_path("broken").write_text("{")
    for command in ((), ("suggest",)):
        with caplog.at_level(logging.WARNING):
            assert said(*command).count("is damaged") == 1
    assert not caplog.messages
    assert not logging.getLogger("specd.store.library").disabled


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.5, 0.8, 1.0, 1.7])
def test_bands_are_named_by_their_temperatures(temperature: float) -> None:
    least, _, most = TEMPERATURE_BANDS[temperature_band(temperature)].partition(" to ")
    if least.startswith("above "):
        assert temperature > float(least.removeprefix("above "))
    else:
        assert temperature in {float(least), float(most or least)} or (
            float(least) < temperature < float(most)
        )
