"""Test the command line of `python -m benchmarks.targets`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.targets.__main__ import _commands, _parser, main, make_config
from specd.bench.config import BenchConfig
from specd.bench.peer import PeerBinary
from specd.bench.quantized_blocks import FileType
from specd.errors import InvalidRequest
from specd.settings import Settings

PEER = PeerBinary(program=("/bin/server",), build="build 7", same_build=True)


@pytest.fixture(autouse=True)
def peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerBinary, "find", lambda _=None: PEER)


def config(*words: str) -> BenchConfig:
    return make_config(_parser().parse_args(words), Settings())


def test_the_targets_are_judged_on_the_padded_demo_pair_beside_a_peer() -> None:
    asked = config()
    assert (asked.model, asked.target, asked.drafter) == ("", None, None)
    assert (asked.target_size, asked.target_type) == ("500m", FileType.Q8_0)
    assert (asked.n_prompts, asked.n_tokens, asked.temperatures) == (2, 48, (0.0, 0.8))
    assert (asked.draft_lengths, asked.peer_lengths) == ((3, 7), (3, 7))
    assert asked.peer is PEER


def test_a_quick_run_is_shorter() -> None:
    asked = config("--quick")
    assert (asked.n_prompts, asked.n_tokens, asked.draft_lengths) == (1, 32, (3,))


def test_options_change_the_target_and_the_number_of_prompts() -> None:
    asked = config("--target-size", "8b", "--target-type", "q4_0", "--prompts", "3")
    assert (asked.target_size, asked.target_type) == ("8b", FileType.Q4_0)
    assert asked.n_prompts == 3


@pytest.mark.parametrize("words", [["--target-type", "Q3_K"], ["--prompts", "0"], ["model"]])
def test_bad_arguments_end_the_run_with_status_2(words: Sequence[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)


def test_without_a_peer_the_run_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(_: str | None = None) -> PeerBinary:
        raise InvalidRequest("none is installed")

    monkeypatch.setattr(PeerBinary, "find", find)
    assert config().peer is None
    assert "No llama-server to compare with: none is installed" in capsys.readouterr().err
    assert main(["--peer", "/no/such/file"]) == 1
    assert "error: none is installed" in capsys.readouterr().err


def test_the_recorded_commands_name_no_folder_of_the_machine(tmp_path: Path) -> None:
    words = ["--report", str(tmp_path / "docs")]
    assert _commands(config(), words) == (
        "make peer",
        "python -m benchmarks.targets --report docs",
    )
