"""The composition root: builds the rooms, wires them, serves, and stops them in reverse."""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging.handlers import QueueHandler, QueueListener

from aiohttp import web

import specd
from specd.api.app import build_app
from specd.api.border import connection_log
from specd.api.ports import Workshop
from specd.create import Creator
from specd.errors import BadSetting, SpecdError
from specd.generation import Generation
from specd.go_template import check_template
from specd.pairs import (
    HISTORY_FILE,
    Fetching,
    History,
    Notebooks,
    Pairs,
    Vocabularies,
    load_rules,
)
from specd.placement import MEMORY_FILE, Cpu, Defaults, Devices, Fit, Learned, machine_name, wishes
from specd.prompt import Renderer
from specd.registry import Registry, default_folder
from specd.runner import ENGINE, Process, probe
from specd.scheduler import Scheduler, SchedulerLoop, Wants
from specd.sd_notify import notify
from specd.settings import Settings, set_without_effect, unknown_variables
from specd.store import Changes, Library, Writer

log = logging.getLogger(__name__)

# After the engines have stopped every answer has its end: this is for writing it out.
LAST_LINES_S = 2.0
# The store is pruned before the first request where that is quick; a disk may be slow, and another
# specd may hold the store.
PRUNE_S = 2.0
# Of one header, and of the request's first line: a browser may send the cookies of every server
# on this machine.  Go allows 1 MiB in all; aiohttp 8 KiB by itself, and 128 headers.
MAX_HEADER_BYTES = 2**16


async def run(settings: Settings, *, command: Sequence[str] = ENGINE) -> None:
    """Serve until SIGTERM or SIGINT; a second signal cuts running answers short.

    command: what starts an engine.  Raises BadSetting where nothing can be served.
    """
    stop, hurry = _signals()
    house = await _built(settings, command)
    server = _server(house.app)
    await server.setup()
    try:
        site = await _listen(server, settings)
        await _open(house, stop)
        _announce(server, settings, house.machine)
        await stop.wait()
        log.info("stopping: running answers have %.0f s to end", settings.shutdown_grace_s)
        notify("STOPPING=1", "STATUS=waiting for running answers")
        await site.stop()
        await house.scheduler.stop(settings.shutdown_grace_s, hurry)
    finally:
        await house.scheduler.stop()
        await house.notebooks.close()
        await house.fetching.close()
        await house.registry.close()
        await server.cleanup()
        await asyncio.to_thread(house.renderer.close)
    log.info("stopped")


def main(settings: Settings) -> int:
    """`specd serve`: the exit status."""
    with _logging(settings.debug):
        try:
            asyncio.run(run(settings))
        except SpecdError as error:
            log.error("%s", error)  # noqa: TRY400 - a sentence for the user, no traceback
            return 1
    return 0


# --------------------------------------------------------------------------- wiring


@dataclass(frozen=True, slots=True, kw_only=True)
class _House:
    """What has work of its own to begin and to end, and what is known of the machine."""

    app: web.Application
    machine: Defaults
    scheduler: SchedulerLoop
    pairs: Pairs
    notebooks: Notebooks
    fetching: Fetching
    writer: Writer
    registry: Registry
    renderer: Renderer
    chores: list[asyncio.Task[None]] = field(default_factory=list)


async def _built(settings: Settings, command: Sequence[str]) -> _House:
    """Nothing runs yet.  Raises BadSetting."""
    devices, machine = await asyncio.to_thread(_machine, settings, command)
    history, here = _history(settings), machine_name(machine.devices)
    notebooks = Notebooks(history, here)
    known = await asyncio.to_thread(Vocabularies.beside, history)
    library = Library(
        settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
    )
    fit = Fit(
        library.shape,
        wishes=wishes(settings, machine.devices),
        learned=_learned(settings),
        devices=devices,
        are_all=devices.are_all,
    )
    scheduler = _scheduler(settings, machine, fit, command, notebooks)
    pairs = Pairs(
        library,
        await asyncio.to_thread(load_rules, settings.pairs_file),
        enabled=settings.speculative_decode,
        history=history,
        machine=here,
        vocabularies=known,
    )
    renderer = Renderer()
    writer = Writer(settings.models, noprune=settings.noprune)
    registry = Registry(writer, keys=default_folder())
    fetching = Fetching(registry.pull, pairs.pair, enabled=settings.auto_pull_drafts)
    app = build_app(
        generation=Generation(
            library,
            pairs,
            scheduler,
            settings,
            render_jinja=renderer.render,
            on_leased=fetching.want,
        ),
        library=library,
        scheduler=scheduler,
        settings=settings,
        registry=registry,
        workshop=_workshop(settings, writer, registry, command),
        efforts=fetching.words,
    )
    return _House(
        app=app,
        machine=machine,
        scheduler=scheduler,
        pairs=pairs,
        notebooks=notebooks,
        fetching=fetching,
        writer=writer,
        registry=registry,
        renderer=renderer,
    )


async def _open(house: _House, stop: asyncio.Event) -> None:
    """Until all is there that a first request needs; the chores go on beside it."""
    prune = asyncio.create_task(_prune(house.writer))
    survey = asyncio.create_task(asyncio.to_thread(house.pairs.survey, stop.is_set))
    house.chores.extend((prune, survey))
    await asyncio.gather(
        asyncio.wait([prune], timeout=PRUNE_S), asyncio.to_thread(house.renderer.start)
    )
    house.scheduler.start()


def _workshop(
    settings: Settings, writer: Writer, registry: Registry, command: Sequence[str]
) -> Workshop:
    creator = Creator(
        writer,
        check_template=check_template,
        pull=registry.pull,
        command=command,
        stall_s=settings.load_timeout_s,
    )
    return Workshop(writer=Changes(writer), creator=creator)


def _machine(settings: Settings, command: Sequence[str]) -> tuple[Devices, Defaults]:
    """Waited for: contexts, the history and how many models may be loaded follow from it.

    A build without GPU backends answers at once, CUDA in about a second.
    """
    ask = functools.partial(probe, command)
    devices = Devices(ask(), ask_again=ask, igpu=settings.igpu)
    for complaint in devices.complaints():
        log.warning("%s", complaint)
    return devices, Defaults(devices=devices(), cpu=Cpu.read(), n_ctx=settings.context_length)


async def _prune(writer: Writer) -> None:
    """A store that cannot be pruned, or written at all, is served all the same."""
    if obstacle := await asyncio.to_thread(writer.obstacle):
        log.warning("no model can be pulled, made or deleted: %s", obstacle)
        return
    try:
        await writer.alone(writer.prune)
    except SpecdError as error:
        log.warning("the store is not pruned: %s", error)


def _history(settings: Settings) -> History:
    folder = settings.state_dir
    if folder is None:
        log.warning("no home, so what is learned of the pairs is not kept: set SPECD_STATE_DIR")
    return History(folder / HISTORY_FILE if folder is not None else None)


def _learned(settings: Settings) -> Learned:
    folder = settings.state_dir
    return Learned(folder / MEMORY_FILE if folder is not None else None)


def _scheduler(
    settings: Settings,
    machine: Defaults,
    fit: Fit,
    command: Sequence[str],
    notebooks: Notebooks,
) -> SchedulerLoop:
    decisions = Scheduler(
        Wants(fill=machine.fill, shortest=machine.least_ctx),
        max_loaded=settings.max_loaded_models or machine.max_loaded,
        max_queue=settings.max_queue,
        default_keep_alive_s=settings.keep_alive_s,
    )
    return SchedulerLoop(
        decisions,
        lambda spec: Process(
            spec,
            load_timeout_s=settings.load_timeout_s,
            command=command,
            notebook=notebooks.open(spec),
        ),
        fit.place,
        fit.learn,
    )


def _server(app: web.Application) -> web.AppRunner:
    # A client that goes away ends its handler, and that frees the slot.
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        logger=connection_log,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        shutdown_timeout=LAST_LINES_S,
    )


async def _listen(server: web.AppRunner, settings: Settings) -> web.TCPSite:
    address = settings.host
    site = web.TCPSite(server, address.host or None, address.port)
    try:
        await site.start()
    except OSError as error:
        raise BadSetting(
            f"cannot listen on {address.url} (OLLAMA_HOST): {error.strerror or error};"
            " another server, perhaps Ollama itself, may be using it"
        ) from error
    return site


def _announce(server: web.AppRunner, settings: Settings, machine: Defaults) -> None:
    host, port = server.addresses[0][:2]
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("specd %s listens on %s, models in %s", specd.__version__, where, settings.models)
    for device in machine.devices:
        free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
        words = device.name, device.id, device.kind, free, total
        log.info("%s (%s, %s): %.1f of %.1f GiB are free", *words)
    for variable, why in set_without_effect().items():
        log.warning("%s is set, and has no effect here: %s", variable, why)
    for variable, meant in unknown_variables().items():
        hint = f": is {meant} meant?" if meant else ""
        log.warning("%s is set, and is no setting%s", variable, hint)
    notify("READY=1", f"STATUS=listening on {where}")


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Set by the first and by the second signal; the third ends the process on the spot."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    caught = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
            for number in caught:
                loop.remove_signal_handler(number)
        stop.set()

    for number in caught:
        loop.add_signal_handler(number, on_signal)
    return stop, hurry


@contextmanager
def _logging(debug: int) -> Iterator[None]:
    """To stderr, written by a thread of its own: a slow terminal never blocks the event loop.

    debug: OLLAMA_DEBUG; 2 adds what the libraries say.
    """
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    listener = QueueListener(lines, writer)
    root = logging.getLogger()
    root.handlers = [QueueHandler(lines)]
    root.setLevel(logging.DEBUG if debug > 1 else logging.WARNING)
    logging.getLogger("specd").setLevel(logging.DEBUG if debug else logging.INFO)
    listener.start()
    try:
        yield
    finally:
        listener.stop()
