"""Traces on disk: bounded, flushed, and without effect on the engine if they fail."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from specd.engine.speculative.trace import Call, Choose, Replay, decode, decode_header, encode
from specd.engine.trace import TraceReader, TraceWriter, UnreadableTrace
from tests.engine.traces import HEADER, run, write_trace


def read(path: Path) -> tuple[list[Call], str]:
    with path.open("rb") as file:
        reader = TraceReader(file)
        assert reader.header == HEADER
        return [call for _, call in reader.calls()], reader.end


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    said: list[Call] = []
    run(said.append)
    calls, end = read(write_trace(tmp_path))
    assert [call.method for call in calls] == [call.method for call in said]
    assert end == ""


@pytest.mark.parametrize("threshold", [None, 0.0, 0.4])
def test_a_trace_replays_under_the_threshold_that_it_began_with(threshold: float | None) -> None:
    """None is the default, auto; older traces hold a number."""
    header = msgspec.structs.replace(HEADER, threshold=threshold)
    read_again = decode_header(encode(header))
    assert read_again.threshold == threshold
    said: list[Call] = []
    run(said.append, 200, header=header)
    replay = Replay(read_again)
    assert [replay.find_difference(call) for call in said] == [None] * len(said)


def test_siblings_are_in_a_trace_and_replay() -> None:
    header = msgspec.structs.replace(HEADER, target_s={1: 1.0, 17: 1.2}, threshold=None)
    said: list[Call] = []
    run(said.append, 60, n_right=1, header=header, n_leaves=3)
    calls = [decode(encode(call)) for call in said]
    chosen = [answer for call in calls if isinstance(call, Choose) for answer in call.answer]
    assert any(siblings for _, _, siblings in chosen)
    replay = Replay(decode_header(encode(header)))
    assert [replay.find_difference(call) for call in calls] == [None] * len(calls)


@pytest.mark.parametrize(
    "weights,begin",
    [
        ("/models/llama-3.2-1b.gguf", "llama-3.2-1b-2"),
        ("/blobs/sha256-" + "0123456789abcdef" * 4, "sha256-0123456789ab-2"),
        ("/models/" + "long" * 50 + ".gguf", "long" * 10 + "-2"),
    ],
)
def test_the_file_is_named_after_the_model(tmp_path: Path, weights: str, begin: str) -> None:
    with closing(TraceWriter(tmp_path, Path(weights), HEADER)) as writer:
        assert writer.path.name.startswith(begin)


def test_a_full_trace_ends_and_says_so(tmp_path: Path) -> None:
    max_bytes = 4000
    writer = TraceWriter(tmp_path, Path("m.gguf"), HEADER, max_bytes=max_bytes)
    run(writer.write)
    run(writer.write)
    assert max_bytes / 2 < writer.path.stat().st_size <= max_bytes
    calls, end = read(writer.path)
    assert "size limit" in end
    assert calls


def test_an_unwritable_folder_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        writer = TraceWriter(tmp_path / "file" / "traces", Path("m.gguf"), HEADER)
        run(writer.write)
    [record] = caplog.records
    assert "SPECD_TRACE_DIR" in record.getMessage()


def test_a_full_disk_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda _, mode: opened(Path("/dev/full"), mode[-1] + "w"))
    with caplog.at_level(logging.WARNING):
        run(TraceWriter(tmp_path, Path("m.gguf"), HEADER).write)
    assert len(caplog.records) == 1


def test_a_truncated_trace_is_read_to_its_last_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path)
    whole, _ = read(path)
    content = path.read_bytes()
    for n_lost in (1, 2, 7):
        path.write_bytes(content[:-n_lost])
        calls, end = read(path)
        # A line that lacks only its line end is complete.
        assert len(calls) == len(whole) - (n_lost > 1)
        assert bool(end) == (n_lost > 1)


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x00\xff", b'{"specd": "0"', b"[]\n"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace, match="not a trace"):
        read(path)


@pytest.mark.parametrize("line", [b'["__init__"]\n', b'["close"]\n', b"\n", b'["plan",1,2]\n'])
def test_an_invalid_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = write_trace(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(UnreadableTrace, match="line 4"):
        read(path)
