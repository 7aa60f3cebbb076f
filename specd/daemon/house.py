"""The rooms, built and wired; nothing of HTTP's sockets, signals or logs."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from specd import core
from specd.api.app import build_app
from specd.api.keys import Keys
from specd.api.middleware import Origins
from specd.api.ports import Outside, Workshop
from specd.create import Creator
from specd.daemon.outside import Engines, Outlook, Readiness
from specd.errors import SpecdError
from specd.generation import Generation
from specd.go_template import check_template
from specd.metrics import Metrics, Observer
from specd.pairs import (
    HISTORY_FILE,
    Fetching,
    History,
    Notebooks,
    Pairs,
    RuleFiles,
    Vocabularies,
    load_rules,
)
from specd.placement import MEMORY_FILE, Cpu, Defaults, Devices, Fit, Learned, machine_name, wishes
from specd.prompt import Renderer
from specd.registry import Registry, Traffic, default_folder
from specd.runner import Process, probe
from specd.scheduler import Scheduler, SchedulerLoop, Wants
from specd.settings import Settings
from specd.store import Changes, Library, Writer

log = logging.getLogger(__name__)

# The store is pruned before the first request where that is quick; a disk may be slow, and another
# specd may hold the store.
PRUNE_S = 2.0

StartEngine = Callable[[core.EngineSpec], Process]


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What has work of its own to begin and to end, and what is known of the machine."""

    app: web.Application
    generation: Generation
    keys: Keys
    origins: Origins
    rules: RuleFiles
    machine: Defaults
    readiness: Readiness
    scheduler: SchedulerLoop
    pairs: Pairs
    notebooks: Notebooks
    fetching: Fetching
    library: Library
    writer: Writer
    registry: Registry
    creator: Creator
    renderer: Renderer
    chores: list[asyncio.Task[None]] = field(default_factory=list)


async def built(settings: Settings, command: Sequence[str]) -> House:
    """Nothing runs yet.  Raises BadSetting."""
    devices, machine = await asyncio.to_thread(_machine, settings, command)
    history, here = _history(settings), machine_name(machine.devices)
    notebooks = Notebooks(history, here)
    known = await asyncio.to_thread(Vocabularies.beside, history)
    library = Library(
        settings.models, demo=settings.demo, go_template=settings.go_template, read=known.read
    )
    fit = _fit(settings, library, devices, machine)
    counted, engines, readiness = Metrics(), Engines(), Readiness()
    start = _starter(settings, command, notebooks, engines)
    scheduler = _scheduler(settings, machine, fit, start, counted)
    rules = await asyncio.to_thread(load_rules, settings.pairs_file, serves=True)
    pairs = Pairs(
        library,
        rules,
        enabled=settings.speculative_decode,
        history=history,
        machine=here,
        vocabularies=known,
        on_gpu=lambda: bool(machine.devices),
    )
    renderer = Renderer()
    writer = Writer(settings.models, noprune=settings.noprune)
    traffic = Traffic(received=counted.pulled, sent=counted.pushed)
    registry = Registry(writer, keys=default_folder(), traffic=traffic)
    fetching = Fetching(registry.pull, pairs.pair, enabled=settings.auto_pull_drafts)
    keys = Keys(key.get_secret_value() for key in settings.api_keys)
    origins = Origins(settings.origins)
    generation = Generation(
        library,
        pairs,
        scheduler,
        settings,
        render_jinja=renderer.render,
        on_leased=fetching.want,
        on_answered=notebooks.count_answer,
    )
    outlook = Outlook(scheduler, engines, readiness, devices=devices.told)
    outside = Outside(metrics=counted, state=outlook, not_ready=readiness)
    creator = _creator(settings, writer, registry, command)
    app = build_app(
        generation=generation,
        library=library,
        scheduler=scheduler,
        settings=settings,
        registry=registry,
        workshop=Workshop(writer=Changes(writer), creator=creator),
        keys=keys,
        origins=origins,
        outside=outside,
        efforts=fetching.words,
    )
    return House(
        app=app,
        generation=generation,
        keys=keys,
        origins=origins,
        rules=rules,
        machine=machine,
        readiness=readiness,
        scheduler=scheduler,
        pairs=pairs,
        notebooks=notebooks,
        fetching=fetching,
        library=library,
        writer=writer,
        registry=registry,
        creator=creator,
        renderer=renderer,
    )


async def open_house(house: House, stop: asyncio.Event) -> None:
    """Until all is there that a first request needs; the chores go on beside it."""
    prune = asyncio.create_task(_prune(house.library, house.writer))
    survey = asyncio.create_task(asyncio.to_thread(house.pairs.survey, stop.is_set))
    house.chores.extend((prune, survey))
    await asyncio.gather(
        asyncio.wait([prune], timeout=PRUNE_S), asyncio.to_thread(house.renderer.start)
    )
    house.scheduler.start()


def _creator(
    settings: Settings, writer: Writer, registry: Registry, command: Sequence[str]
) -> Creator:
    return Creator(
        writer,
        check_template=check_template,
        pull=registry.pull,
        command=command,
        stall_s=settings.load_timeout_s,
        converter_dir=settings.converter_dir,
    )


def _machine(settings: Settings, command: Sequence[str]) -> tuple[Devices, Defaults]:
    """Waited for: contexts, the history and how many models may be loaded follow from it.

    A build without GPU backends answers at once, CUDA in about a second.
    """
    ask = functools.partial(probe, command)
    devices = Devices(ask(), ask_again=ask, igpu=settings.igpu)
    for complaint in devices.complaints():
        log.warning("%s", complaint)
    return devices, Defaults(devices=devices(), cpu=Cpu.read(), n_ctx=settings.context_length)


async def _prune(library: Library, writer: Writer) -> None:
    """A store that cannot be pruned, written or read at all, is served all the same."""
    if closed := await asyncio.to_thread(library.obstacle):
        log.warning("the store %s: no model of it is listed", closed)
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


def _fit(settings: Settings, library: Library, devices: Devices, machine: Defaults) -> Fit:
    return Fit(
        library.shape,
        wishes=wishes(settings, machine.devices),
        learned=_learned(settings),
        devices=devices,
        are_all=devices.are_all,
    )


def _starter(
    settings: Settings, command: Sequence[str], notebooks: Notebooks, engines: Engines
) -> StartEngine:
    def start(spec: core.EngineSpec) -> Process:
        process = Process(
            spec,
            load_timeout_s=settings.load_timeout_s,
            timeout_s=settings.engine_timeout_s,
            command=command,
            notebook=notebooks.open(spec),
        )
        return engines.add(process, spec)

    return start


def _scheduler(
    settings: Settings, machine: Defaults, fit: Fit, start: StartEngine, observer: Observer
) -> SchedulerLoop:
    decisions = Scheduler(
        Wants(fill=machine.fill, shortest=machine.least_ctx),
        max_loaded=settings.max_loaded_models or machine.max_loaded,
        max_queue=settings.max_queue,
        default_keep_alive_s=settings.keep_alive_s,
    )
    return SchedulerLoop(decisions, start, fit.place, fit.learn, observer=observer)
