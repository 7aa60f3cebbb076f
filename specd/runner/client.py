"""The pending requests of one engine: submit, stream, cancel.

Knows messages, not processes.  The reader of the channel calls `deliver` for each message, and
`close` when the engine has ended.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from specd import core, errors
from specd.ipc import messages
from specd.ipc.codec import BadFrame

#: Most tokens and logprobs of an answer that wait for its reader.  To make the engine wait instead
#: would stall all its other slots.
MAX_UNREAD = 65_536

T = TypeVar("T")


class Channel(Protocol):
    """The part of `ipc.channel.DaemonChannel` that the client uses."""

    async def send(self, message: messages.ToEngine) -> None: ...
    def send_nowait(self, message: messages.ToEngine) -> None: ...


class _Answer:
    """The events of one request: an iterator that submits it when the first event is asked for."""

    def __init__(self, client: EngineClient, request_id: int, request: core.EngineRequest) -> None:
        self._client = client
        self._id = request_id
        self._request: core.EngineRequest | None = request  # None once it is submitted
        self._is_over = False
        self._events: deque[core.Event] = deque()  # not read yet
        self._n_unread = 0
        self._waiting: asyncio.Future[None] | None = None  # the reader, for the next event

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> core.Event:
        if self._is_over:
            raise StopAsyncIteration
        if self._request is not None:
            request, self._request = self._request, None
            await self._client.submit(self._id, self, request)
        event = await self._get()
        self._is_over = isinstance(event, core.Done | core.Failed)
        return event

    async def aclose(self) -> None:
        """Leave the answer; the engine frees its slot."""
        self._is_over = True
        self._client.leave(self._id)

    def put(self, event: core.Event) -> None:
        self._events.append(event)
        self._n_unread += _weight(event)
        _fulfil(self._waiting, None)

    def has_too_much_unread(self) -> bool:
        return self._n_unread > MAX_UNREAD

    async def _get(self) -> core.Event:
        while not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        event = self._events.popleft()
        self._n_unread -= _weight(event)
        return event


def _weight(event: core.Event) -> int:
    if not isinstance(event, core.Token):
        return 0
    return event.n_tokens + sum(len(logprob.top) + 1 for logprob in event.logprobs)


class EngineClient:
    """The pending requests of one engine; sends them and hands each its messages."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ids = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._tokenized: dict[int, asyncio.Future[list[int]]] = {}
        self._detokenized: dict[int, asyncio.Future[str]] = {}
        self._embedded: dict[int, asyncio.Future[core.Embedding]] = {}
        self._end: core.Failed | None = None
        self._asked = asyncio.Event()  # set when a request is sent or cancelled
        self._is_settled = True  # the engine has shown a sign of life since the last cancel
        self._n_steps = 0  # in the engine's last Pong
        #: Messages of the engine; a Pong counts only if it reports new steps.
        self.n_signs_of_life = 0

    # ----------------------------------------------------------------------- pending work

    @property
    def has_pending_work(self) -> bool:
        """Whether the engine has a request to answer, or a cancel to react to.

        Cancels count, so that callers that come and go do not hide a stall.
        """
        waiting = self._answers or self._tokenized or self._detokenized or self._embedded
        return bool(waiting) or not self._is_settled

    async def wait_for_pending_work(self) -> None:
        """Wait until the engine has something to do."""
        if not self.has_pending_work:
            self._asked.clear()
            await self._asked.wait()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._channel.send_nowait(messages.Ping())

    def _cancel(self, request_id: int) -> None:
        self._is_settled = False
        self._asked.set()
        self._channel.send_nowait(messages.Cancel(request_id))

    def _note(self, message: messages.ToDaemon) -> None:
        if isinstance(message, messages.Pong):
            if message.n_steps == self._n_steps:
                return
            self._n_steps = message.n_steps
        self.n_signs_of_life += 1
        self._is_settled = True

    # ----------------------------------------------------------------------- requests

    def generate(self, request: core.EngineRequest) -> core.Stream[core.Event]:
        """Return Started and Tokens, then one Done or Failed.  Closing it early frees the slot."""
        return _Answer(self, next(self._ids), request)

    async def submit(self, request_id: int, answer: _Answer, request: core.EngineRequest) -> None:
        """Send a request whose events go to `answer`, which gets a Failed if it cannot be sent."""
        if self._end is not None:
            answer.put(self._end)
            return
        self._answers[request_id] = answer
        self._asked.set()
        try:
            await self._channel.send(messages.Submit(request_id, request))
        except BadFrame as error:
            del self._answers[request_id]
            message = f"prompt too large: {error}"
            answer.put(core.Failed(kind=core.FailureKind.INVALID, message=message))
        except OSError:
            pass  # the engine has just died: the reader of the channel will call `close`

    def leave(self, request_id: int) -> None:
        """Cancel a request unless its last event has come."""
        if self._answers.pop(request_id, None) is not None and self._end is None:
            self._cancel(request_id)

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        """Return the tokens of a prompt.

        Raises EngineCrashed, or InvalidRequest if the prompt is too large for a frame or an image
        is not valid.
        """
        if self._end is not None:
            raise errors.EngineCrashed(self._end.message)
        request = messages.Tokenize(next(self._ids), pieces, add_bos)
        return await self._ask(request, self._tokenized)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens.

        Raises EngineCrashed, or InvalidRequest for an id that the model does not have.
        """
        if self._end is not None:
            raise errors.EngineCrashed(self._end.message)
        request = messages.Detokenize(next(self._ids), tuple(tokens))
        return await self._ask(request, self._detokenized)

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        """Return the vector of `text`.

        Raises ContextLengthExceeded, InvalidRequest, or the error with which the engine ended.
        """
        if self._end is not None:
            raise self._end.error()
        request = messages.Embed(next(self._ids), text, truncate, n_ctx)
        return await self._ask(request, self._embedded)

    async def _ask(
        self,
        request: messages.Tokenize | messages.Detokenize | messages.Embed,
        waiting: dict[int, asyncio.Future[T]],
    ) -> T:
        """Send `request` and return its answer; `waiting` holds its future until then.

        If the caller is cancelled, so is the request in the engine.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting[request.request_id] = answer
        self._asked.set()
        try:
            await self._send(request)
            return await answer
        except asyncio.CancelledError:
            if self._end is None:
                self._cancel(request.request_id)
            raise
        finally:
            waiting.pop(request.request_id, None)

    async def _send(
        self, request: messages.Tokenize | messages.Detokenize | messages.Embed
    ) -> None:
        try:
            await self._channel.send(request)
        except BadFrame as error:
            raise errors.InvalidRequest(f"prompt too large: {error}") from error
        except OSError:
            pass  # as in `submit`

    def deliver(self, message: messages.ToDaemon) -> None:
        """Hand a message to its request; drop it if the request is gone."""
        self._note(message)
        match message:
            case messages.Started(request_id, n_prompt, n_cached):
                if (answer := self._answers.get(request_id)) is not None:
                    answer.put(core.Started(n_prompt=n_prompt, n_cached=n_cached))
            case messages.Tokens(request_id, token):
                self._deliver_token(request_id, token)
            case messages.Finished(request_id, event):
                if (answer := self._answers.pop(request_id, None)) is not None:
                    answer.put(event)
                elif isinstance(event, core.Failed):
                    _fail(self._embedded.pop(request_id, None), event.error())
                    _fail(self._tokenized.pop(request_id, None), event.error())
                    _fail(self._detokenized.pop(request_id, None), event.error())
            case messages.Tokenized(request_id, tokens):
                _fulfil(self._tokenized.pop(request_id, None), tokens)
            case messages.Detokenized(request_id, text):
                _fulfil(self._detokenized.pop(request_id, None), text)
            case messages.Embedded(request_id, embedding):
                _fulfil(self._embedded.pop(request_id, None), embedding)
            case _:
                pass  # Pong, or LoadProgress after a load

    def _deliver_token(self, request_id: int, token: core.Token) -> None:
        answer = self._answers.get(request_id)
        if answer is None:
            return
        answer.put(token)
        if answer.has_too_much_unread():
            del self._answers[request_id]
            self._cancel(request_id)
            message = f"the answer was not read: {MAX_UNREAD} tokens are waiting"
            answer.put(core.Failed(kind=core.FailureKind.ENGINE, message=message))

    def close(self, end: core.Failed) -> None:
        """End all pending and later requests with `end`."""
        self._end = end
        for answer in self._answers.values():
            answer.put(end)
        self._answers.clear()
        for tokenized in self._tokenized.values():
            _fail(tokenized, errors.EngineCrashed(end.message))
        self._tokenized.clear()
        for detokenized in self._detokenized.values():
            _fail(detokenized, errors.EngineCrashed(end.message))
        self._detokenized.clear()
        for embedded in self._embedded.values():
            _fail(embedded, end.error())
        self._embedded.clear()


def _fulfil(waiting: asyncio.Future[T] | None, result: T) -> None:
    """Set the result, unless the caller has gone (None) or been cancelled."""
    if waiting is not None and not waiting.done():
        waiting.set_result(result)


def _fail(waiting: asyncio.Future[T] | None, error: errors.SpecdError) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
