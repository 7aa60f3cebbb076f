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


async def test_messages_are_sent_in_both_directions(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    daemon, engine = await DaemonChannel.from_socket(pair[0]), EngineChannel(pair[1])
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
    daemon = await DaemonChannel.from_socket(pair[0])
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


def test_an_invalid_frame_raises_bad_frame(pair: tuple[socket.socket, socket.socket]) -> None:
    engine = EngineChannel(pair[1])
    pair[0].sendall(codec.HEADER.pack(1) + b"\xc1")
    with pytest.raises(codec.BadFrame):
        engine.receive()
    engine.close()


async def test_a_listener_is_called_by_the_read_itself(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    daemon, engine = await DaemonChannel.from_socket(pair[0]), EngineChannel(pair[1])
    engine.send(messages.LoadProgress(0.5))
    assert await daemon.receive() == messages.LoadProgress(0.5)
    pongs = [messages.Pong(n) for n in range(9)]
    heard: list[messages.ToDaemon] = []
    second, last = asyncio.Event(), asyncio.Event()

    def deliver(message: messages.ToDaemon) -> None:
        assert asyncio.current_task() is None, "a task was woken to deliver"
        heard.append(message)
        (second if len(heard) == 2 else last).set()

    listening = asyncio.create_task(daemon.listen(deliver))
    frames = b"".join(map(codec.encode, pongs))
    at = 2 * len(codec.encode(pongs[0])) + 3  # in the middle of the third
    pair[1].sendall(frames[:at])
    await second.wait()
    last.clear()
    pair[1].sendall(frames[at:])
    await last.wait()
    assert heard == pongs
    engine.close()
    await listening
    await daemon.close()


async def test_a_listener_gets_the_messages_before_a_bad_frame(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    daemon = await DaemonChannel.from_socket(pair[0])
    pair[1].sendall(codec.encode(messages.Pong(1)) + codec.HEADER.pack(1) + b"\xc1")
    heard: list[messages.ToDaemon] = []
    with pytest.raises(codec.BadFrame):
        await daemon.listen(heard.append)
    assert heard == [messages.Pong(1)]
    with pytest.raises(codec.BadFrame):
        await daemon.receive()
    with pytest.raises(ConnectionError):
        await daemon.send(messages.Ping())
    await daemon.close()


async def test_a_sender_waits_for_the_engine_until_it_ends(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    daemon = await DaemonChannel.from_socket(pair[0])
    sending = asyncio.create_task(daemon.send(messages.Tokenize(1, ("a" * 10_000_000,), True)))
    await asyncio.sleep(0)
    assert not sending.done()
    pair[1].close()
    with pytest.raises(ConnectionError):
        await sending
    await daemon.close()
