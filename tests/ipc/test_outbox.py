"""The outbox: queued messages are sent together, in order, without blocking."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from specd.core import Token
from specd.ipc import codec
from specd.ipc.channel import Outbox
from specd.ipc.messages import Pong, ToDaemon, Tokens

#: More messages than a socket holds while its other end does not read.
MANY = 20_000


@pytest.fixture
def pair() -> Iterator[tuple[Outbox, socket.socket]]:
    daemon, engine = socket.socketpair()
    with closing(daemon), closing(engine):
        outbox = Outbox(engine)
        yield outbox, daemon
        daemon.close()
        outbox.drain()


def text_message(text: str, request_id: int = 1) -> Tokens:
    return Tokens(request_id, Token(text=text))


def read(daemon: socket.socket, n: int) -> list[ToDaemon]:
    """Return the next n messages."""
    with daemon.makefile("rb") as stream:
        found = []
        for _ in range(n):
            length = codec.body_length(stream.read(codec.HEADER.size))
            found.append(codec.decode_to_daemon(stream.read(length)))
        return found


def test_a_flush_sends_all_queued_messages_together(
    pair: tuple[Outbox, socket.socket],
) -> None:
    outbox, daemon = pair
    messages = [text_message("a", 1), text_message("b", 2), text_message("c", 3)]
    for message in messages:
        outbox.put(message)
    with pytest.raises(BlockingIOError):
        daemon.recv(1, socket.MSG_DONTWAIT)
    outbox.flush()
    assert daemon.recv(1 << 16, socket.MSG_DONTWAIT) == b"".join(map(codec.encode, messages))


def test_a_sent_message_follows_the_queued_ones(pair: tuple[Outbox, socket.socket]) -> None:
    outbox, daemon = pair
    outbox.put(text_message("a"))
    outbox.send(Pong(1))
    assert read(daemon, 2) == [text_message("a"), Pong(1)]


def test_sending_does_not_block_if_the_daemon_does_not_read(
    pair: tuple[Outbox, socket.socket],
) -> None:
    outbox, daemon = pair
    messages = [text_message(f"{i:0100}") for i in range(MANY)]
    for message in messages:
        outbox.send(message)
    assert read(daemon, MANY) == messages
    outbox.send(Pong(2))
    assert read(daemon, 1) == [Pong(2)]


def test_a_drained_outbox_has_sent_all_of_it(pair: tuple[Outbox, socket.socket]) -> None:
    outbox, daemon = pair
    for i in range(10):
        outbox.put(text_message(str(i)))
    outbox.drain()
    assert read(daemon, 10) == [text_message(str(i)) for i in range(10)]


def test_messages_to_a_closed_socket_are_dropped(pair: tuple[Outbox, socket.socket]) -> None:
    outbox, daemon = pair
    for i in range(MANY):
        outbox.send(text_message(f"{i:0100}"))
    daemon.close()
    outbox.send(Pong(3))
    outbox.drain()


class Held(Outbox):
    """An outbox whose writer pauses after it finds the rest empty, until `gate` is set."""

    at_gate = threading.Event()
    gate = threading.Event()

    def _unsent(self) -> bytes:
        rest = super()._unsent()
        if not rest:
            self.at_gate.set()
            self.gate.wait()
        return rest


def test_messages_put_while_the_writer_finishes_are_written() -> None:
    daemon, engine = socket.socketpair()
    with closing(daemon), closing(engine):
        outbox, read_ahead = Held(engine), bytearray()

        def reads() -> None:
            while data := daemon.recv(1 << 16):
                read_ahead.extend(data)

        reader = threading.Thread(target=reads)
        messages = [Pong(at) for at in range(MANY)]
        for message in messages:
            outbox.put(message)
        outbox.flush()  # the socket is full, so that the writer has the rest
        reader.start()
        outbox.at_gate.wait()
        outbox._write_now = lambda frames: 0  # type: ignore[method-assign]  # noqa: SLF001 - the race is made by hand
        for message in messages:
            outbox.put(message)
        ending = threading.Thread(target=outbox.drain)
        ending.start()
        while not outbox._is_closed:  # noqa: SLF001 - the race is made by hand
            pass
        outbox.gate.set()
        ending.join()
        engine.shutdown(socket.SHUT_WR)
        reader.join()
        assert bytes(read_ahead) == b"".join(map(codec.encode, messages)) * 2
