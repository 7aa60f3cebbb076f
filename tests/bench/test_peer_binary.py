"""Test the search for a server, its command line and its replies."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.bench import peer_binary
from specd.bench.peer import PeerBinary, parse_answer, request
from specd.bench.peer_binary import PeerLoad, matches_commit
from specd.core import SamplingParams
from specd.errors import EngineError, InvalidRequest

NEW = "-md,   --spec-draft-n-max N   --spec-type none,draft-simple   -kvu,  --kv-unified\n" * 2 + (
    "--ui, --no-ui   -fit, --fit [on|off]   -cram, --cache-ram N"
)
COMMITS = st.text("0123456789abcdef", min_size=40, max_size=40)
OLD = "-md, --model-draft FNAME\n--draft-max, --draft, --draft-n N\n--no-webui\n"


def binary(usage: str) -> PeerBinary:
    return PeerBinary(program=("/bin/server",), build="", same_build=False, usage=usage)


def said(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


# --------------------------------------------------------------------------- the search


def test_a_path_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no-such-server"):
        PeerBinary.find(str(tmp_path / "no-such-server"))


def test_a_program_that_is_not_a_llama_server_is_refused() -> None:
    program = shutil.which("true")
    assert program is not None
    with pytest.raises(InvalidRequest, match="llama-server"):
        PeerBinary.find(program)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'no libggml here' >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(InvalidRequest, match="no libggml here"):
        PeerBinary.find(str(program))


def test_a_named_program_reports_its_build(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    commit = peer_binary.engine_commit()
    program.write_text(f"#!/bin/sh\necho 'version: 7 ({commit}00)'\necho 'built with cc for x'\n")
    program.chmod(0o755)
    found = PeerBinary.find(str(program))
    assert found.build == f"llama-server 7 ({commit}00), built with cc for x"
    assert found.same_build is bool(commit)
    assert found.program == (str(program),)


def test_without_a_server_the_error_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peer_binary, "find_spec", lambda _: None)
    with pytest.raises(InvalidRequest, match="make peer"):
        PeerBinary.find()


def test_the_wheels_server_is_used_if_none_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the extra `bench` is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = PeerBinary.find()
    assert "xllamacpp" in found.build
    assert not found.same_build


def test_a_server_is_cached_for_one_build_of_the_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peer_binary.server_path().parent.name == peer_binary.build_id()
    assert peer_binary.server_path().is_relative_to(tmp_path)


@given(
    st.text("0123456789abcdef", min_size=40, max_size=40), st.integers(7, 40), st.integers(7, 40)
)
def test_abbreviated_commits_match(commit: str, theirs: int, ours: int) -> None:
    version = f"1.0-dev (build 1, commit {commit[:theirs]})"
    assert matches_commit(version, commit[:ours])
    other = ("0" if commit[0] != "0" else "1") + commit[1:ours]
    assert not matches_commit(version, other)


# --------------------------------------------------------------------------- its command line


def test_the_command_line_of_a_plain_server() -> None:
    load = PeerLoad(target="/t", n_threads=3, n_ctx=1000, n_slots=4, kv_type="q8_0")
    command = binary(NEW).command(load, 81)
    assert command[:5] == ["/bin/server", "--host", "127.0.0.1", "--port", "81"]
    assert said(command, "--ctx-size") == "4000"
    assert said(command, "--parallel") == "4"
    assert said(command, "--cache-type-k") == said(command, "--cache-type-v") == "q8_0"
    assert said(command, "--threads") == said(command, "--threads-batch") == "3"
    assert said(command, "--flash-attn") == "auto"
    assert said(command, "--cache-ram") == "0"
    assert {"--no-ui", "--kv-unified"} <= set(command)
    assert not [word for word in command if "draft" in word or "spec" in word]


def test_a_new_server_gets_its_draft_options() -> None:
    load = PeerLoad(target="/t", drafter="/d", n_draft_max=5, n_threads=2, n_gpu_layers=0)
    command = binary(NEW).command(load, 81)
    assert said(command, "--spec-draft-p-min") == "0"
    assert said(command, "--model-draft") == "/d"
    assert said(command, "--spec-type") == "draft-simple"
    assert said(command, "--spec-draft-n-max") == "5"
    assert said(command, "--threads-draft") == said(command, "--threads") == "2"
    assert said(command, "--n-gpu-layers") == said(command, "--n-gpu-layers-draft") == "0"


def test_an_old_server_gets_its_own_options() -> None:
    load = PeerLoad(target="/t", drafter="/d", n_draft_max=5)
    command = binary(OLD).command(load, 81)
    assert said(command, "--draft-max") == "5"
    assert "--no-webui" in command
    unknown = {"--no-ui", "--fit", "--cache-ram", "--kv-unified", "--spec-type", "--threads"}
    assert not unknown & set(command)


def test_options_match_by_their_whole_name() -> None:
    assert binary(NEW).knows("--fit")
    assert not binary("--fit-target N").knows("--fit")
    assert not binary("--no-kv-unified").knows("--kv-unified")


# --------------------------------------------------------------------------- asked and answered


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_has_specds_filters_and_no_neutral_sampler(temperature: float) -> None:
    body = request("p", n_tokens=9, temperature=temperature, seed=2**40)
    ours = SamplingParams(temperature=temperature)
    assert body["top_k"] == (ours.top_k if temperature else 1)
    assert (body["top_p"], body["min_p"], body["repeat_penalty"]) == (ours.top_p, 0.0, 1.0)
    assert 0 <= body["seed"] < 0xFFFFFFFF
    assert set(body["samplers"]) <= {"top_k", "top_p", "temperature"}
    assert (body["n_predict"], body["ignore_eos"], body["cache_prompt"]) == (9, False, True)


REPLY = {
    "content": "x",
    "tokens_evaluated": 7,
    "timings": {"predicted_n": 3, "predicted_ms": 2.0, "cache_n": 4},
}


def test_a_reply_is_read_with_and_without_drafts() -> None:
    answer = parse_answer(REPLY)
    assert (answer.usage.n_generated, answer.usage.generate_ns) == (3, 2_000_000)
    assert (answer.usage.n_prompt, answer.usage.n_cached) == (7, 4)
    assert answer.speculation.draft_n == 0
    timings = {**REPLY["timings"], "draft_n": 6, "draft_n_accepted": 2}  # type: ignore[dict-item]
    drafted = parse_answer({**REPLY, "timings": timings}).speculation
    assert (drafted.draft_n, drafted.draft_n_accepted) == (6, 2)


@pytest.mark.parametrize("missing", ["content", "tokens_evaluated", "timings"])
def test_a_reply_without_what_is_measured_is_an_error(missing: str) -> None:
    reply: dict[str, Any] = {key: value for key, value in REPLY.items() if key != missing}
    with pytest.raises(EngineError, match=missing):
        parse_answer(reply)
