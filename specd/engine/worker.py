"""The engine process: a loop, a reader thread, and a socket to the daemon.

The main thread runs and owns the loop; once a step it sends the messages that the loop emitted
(ipc/channel.py).  The reader thread puts the daemon's messages into an inbox and answers pings.
When the socket closes, the daemon is gone, and the engine ends.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

from specd.core import EngineSpec, FailureKind, PairHistory, TokenId
from specd.engine import loader
from specd.engine.embedder import Embedder
from specd.engine.loader import LoadedEncoder, LoadedPair
from specd.engine.loop import Loop
from specd.engine.prompt_tokens import PieceTokenizer, failed
from specd.engine.speculation import DrafterFacts
from specd.engine.speculative.controller import Controller
from specd.engine.speculative.draft_model import DraftModel
from specd.engine.speculative.pair_stats import HistoryReporter, history_for_device
from specd.engine.speculative.trace import Header
from specd.engine.trace import TraceWriter
from specd.errors import InvalidRequest, LoadFailed, OutOfMemory
from specd.ipc import messages, parent_death
from specd.ipc.channel import EngineChannel
from specd.ipc.codec import BadFrame
from specd.ipc.messages import ToDaemon, ToEngine

log = logging.getLogger("specd.engine")

#: Load progress is reported in steps of this fraction.
_PROGRESS_STEP = 0.02


class Worker:
    """The engine process, from its first message to its last."""

    def __init__(self, channel: EngineChannel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
        self._n_steps = 0  # written by the main thread, read by the reader
        #: Tokenizations that threads still work on, by request id.
        self._tokenizations: dict[int, Future[None]] = {}

    def run(self) -> int:
        """Load the model, serve until the daemon stops the engine, and return the exit status."""
        threading.Thread(target=self._receive_messages, name="reader", daemon=True).start()
        first = self._inbox.get()
        if not isinstance(first, messages.Load):
            raise TypeError(f"the first message must be Load, not {type(first).__name__}")
        load = loader.load_encoder if first.spec.embeds else loader.load_pair
        try:
            loaded = load(first.spec, self._report_progress())
        except LoadFailed as error:
            self._channel.send(messages.LoadRefused(str(error), isinstance(error, OutOfMemory)))
            self._channel.outbox.drain()
            return 1
        if isinstance(loaded, LoadedEncoder):
            self._embed(loaded)
        else:
            self._generate(first, loaded)
        self._channel.outbox.drain()
        return 0

    def _generate(self, first: messages.Load, loaded: LoadedPair) -> None:
        device = loaded.facts.target.device
        history = history_for_device(first.history, device)
        with make_controller(first.spec, loaded, history) as controller:
            outbox = self._channel.outbox
            loop = make_loop(first.spec, loaded, outbox.put, controller, flush=outbox.flush)
            history_reporter = HistoryReporter(controller.history, device, outbox.put)
            self._channel.send(messages.Loaded(loaded.facts))
            tokenizer = PieceTokenizer(loaded.vocabulary, loaded.media)
            self._serve(loop, tokenizer, history_reporter.report_changes)

    def _embed(self, loaded: LoadedEncoder) -> None:
        embedder = Embedder(loaded.encoder, loaded.vocabulary, self._channel.send)
        self._channel.send(messages.Loaded(loaded.facts))
        self._serve(embedder, PieceTokenizer(loaded.vocabulary))

    def _serve(
        self,
        work: Loop | Embedder,
        tokenizer: PieceTokenizer,
        report_history: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Handle messages and run steps until Shutdown."""
        is_busy = False
        try:
            while True:
                message = self._next_message(wait=not is_busy)
                while message is not None:
                    if isinstance(message, messages.Shutdown):
                        work.fail_all(FailureKind.SHUTDOWN, "the server is shutting down")
                        report_history(False)
                        return
                    self.handle(message, work, tokenizer)
                    self._n_steps += 1
                    message = self._next_message(wait=False)
                self._n_steps += work.step()
                is_busy = work.is_busy
                report_history(is_busy)
                self._channel.outbox.flush()
        except Exception:
            # Boundary: whatever went wrong, every request gets an answer before the process ends.
            log.exception("the engine loop failed")
            work.fail_all(
                FailureKind.CRASHED, "the engine failed; see the daemon's log for the reason"
            )
            self._channel.outbox.drain()
            raise

    def handle(self, message: ToEngine, work: Loop | Embedder, tokenizer: PieceTokenizer) -> None:
        match message:
            case messages.Submit() if isinstance(work, Loop):
                work.submit(message.request_id, message.request)
            case messages.Embed() if isinstance(work, Embedder):
                text, n_ctx = message.text, message.n_ctx
                work.submit(message.request_id, text, truncate=message.truncate, n_ctx=n_ctx)
            case messages.Submit() | messages.Embed():
                output_kind = "vectors" if isinstance(work, Embedder) else "text"
                refusal = failed(InvalidRequest(f"this engine gives {output_kind}"))
                self._channel.send(messages.Finished(message.request_id, refusal))
            case messages.Cancel():
                work.cancel(message.request_id)
                if (tokenization := self._tokenizations.get(message.request_id)) is not None:
                    tokenization.cancel()
            case messages.Tokenize(request_id, pieces, add_bos):
                answer = self._answer(request_id)
                tokenization = tokenizer.tokenize(pieces, answer, add_bos=add_bos)
                self._track_tokenization(request_id, tokenization)
            case messages.Detokenize(request_id, tokens):
                tokenization = tokenizer.detokenize(tokens, self._answer(request_id))
                self._track_tokenization(request_id, tokenization)
            case _:
                log.warning("ignored an unexpected message: %s", type(message).__name__)

    def _track_tokenization(self, request_id: int, tokenization: Future[None] | None) -> None:
        """Keep the future of a tokenization until it is done or cancelled."""
        if tokenization is not None:
            self._tokenizations[request_id] = tokenization
            tokenization.add_done_callback(lambda _: self._tokenizations.pop(request_id))

    def _answer(self, request_id: int) -> Callable[[list[TokenId] | str | InvalidRequest], None]:
        """Return a callback that sends the result of a tokenization or detokenization."""

        def answer(found: list[TokenId] | str | InvalidRequest) -> None:
            if isinstance(found, InvalidRequest):
                self._channel.send(messages.Finished(request_id, failed(found)))
            elif isinstance(found, str):
                self._channel.send(messages.Detokenized(request_id, found))
            else:
                self._channel.send(messages.Tokenized(request_id, found))

        return answer

    def _next_message(self, *, wait: bool) -> ToEngine | None:
        # empty() first: an exception is slow between two passes, when CPU caches are cold.
        return self._inbox.get() if wait or not self._inbox.empty() else None

    def _receive_messages(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                if isinstance(message, messages.Ping):  # not for the loop, which may be stuck
                    self._channel.send(messages.Pong(self._n_steps))
                else:
                    self._inbox.put(message)
        except BadFrame:
            log.exception("cannot decode a message of the daemon")
            os._exit(1)
        # The daemon is gone, and a native call may block the main thread: end the process here.
        os._exit(0)

    def _report_progress(self) -> Callable[[float], None]:
        last_reported = -1.0

        def report(fraction: float) -> None:
            nonlocal last_reported
            if (
                fraction < last_reported
                or fraction - last_reported >= _PROGRESS_STEP
                or fraction >= 1.0
            ):
                last_reported = fraction
                self._channel.send(messages.LoadProgress(fraction))

        return report


@contextmanager
def make_controller(
    spec: EngineSpec, loaded: LoadedPair, history: PairHistory | None
) -> Iterator[Controller]:
    """Yield a controller for a loaded pair; it writes a trace if the user set a trace folder."""
    if not spec.trace_dir:
        yield Controller(loaded.costs, spec.acceptance_threshold, history, spec.max_draft)
        return
    header = Header.of(loaded.costs, spec.acceptance_threshold, history, spec.max_draft)
    with closing(TraceWriter(Path(spec.trace_dir), Path(spec.weights), header)) as writer:
        yield header.controller(writer.write)


def make_loop(
    spec: EngineSpec,
    loaded: LoadedPair,
    emit: Callable[[ToDaemon], None],
    controller: Controller | None = None,
    flush: Callable[[], None] = lambda: None,
) -> Loop:
    """Return the loop over a loaded pair.  controller: None: a new one without history."""
    drafter = None
    if loaded.drafter is not None:
        drafter = DraftModel(loaded.drafter, loaded.vocabulary, spec.n_slots)
    return Loop(
        loaded.target,
        loaded.vocabulary,
        controller or Controller(loaded.costs, spec.acceptance_threshold, None, spec.max_draft),
        emit,
        flush=flush,
        n_ctx=loaded.facts.n_ctx,
        n_slots=spec.n_slots,
        drafter=drafter,
        media=loaded.media,
        exact=loaded.exact,
        drafter_facts=DrafterFacts(
            name=spec.drafter_name or None,
            pair_source=spec.pair_source or None,
            reason=loaded.facts.no_pair_reason,
            detail=loaded.facts.no_pair_detail,
            threshold=spec.acceptance_threshold,
        ),
    )


def main(fd: int) -> int:
    """Serve the daemon at the other end of the inherited socket; return the exit status."""
    parent_death.die_with_parent()
    # Ctrl-C in a terminal reaches the whole process group, and `systemctl kill -s HUP` the whole
    # service, but only the daemon decides when engines stop.
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    return Worker(EngineChannel(socket.socket(fileno=fd))).run()
