"""Both ends of a socketpair, without an engine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from specd.ipc import codec, messages
from specd.ipc.channel import DaemonChannel, EngineChannel


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    daemon, engine = socket.socketpair()
    with closing(daemon), closing(engine):
        yield daemon, engine


async def test_words_cross_in_both_directions(pair: tuple[socket.socket, socket.socket]) -> None:
    daemon, engine = await DaemonChannel.over(pair[0]), EngineChannel(pair[1])
    await daemon.send(messages.Tokenize(1, ("a" * 100_000,), add_bos=False))
    heard = await asyncio.to_thread(engine.receive)
    assert heard == messages.Tokenize(1, ("a" * 100_000,), add_bos=False)
    await asyncio.to_thread(engine.send, messages.Tokenized(1, list(range(1000))))
    assert await daemon.receive() == messages.Tokenized(1, list(range(1000)))
    await daemon.close()
    assert await asyncio.to_thread(engine.receive) is None
    engine.close()


async def test_the_daemon_sees_a_frame_cut_short_as_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    daemon = await DaemonChannel.over(pair[0])
    pair[1].sendall(codec.encode(messages.LoadProgress(0.5))[:-1])
    pair[1].close()
    assert await daemon.receive() is None
    await daemon.close()


def test_the_engine_sees_a_frame_cut_short_as_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    engine = EngineChannel(pair[1])
    pair[0].sendall(codec.encode(messages.Cancel(1))[:-1])
    pair[0].close()
    assert engine.receive() is None
    engine.close()


def test_close_wakes_a_blocked_receive(pair: tuple[socket.socket, socket.socket]) -> None:
    engine = EngineChannel(pair[1])
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.append(engine.receive()))
    thread.start()
    engine.close()
    thread.join()
    assert heard == [None]


def test_damage_is_told_apart_from_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    engine = EngineChannel(pair[1])
    pair[0].sendall(codec.HEADER.pack(1) + b"\xc1")
    with pytest.raises(codec.BadFrame):
        engine.receive()
    engine.close()
