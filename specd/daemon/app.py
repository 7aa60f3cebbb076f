"""Builds and connects the daemon's services.  Sockets, signals and logs are set up elsewhere."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from specd import core
from specd.api.app import build_app
from specd.api.interfaces import Monitoring, StoreServices
from specd.api.keys import Keys
from specd.api.middleware import Origins
from specd.create import Creator
from specd.daemon.status import Readiness, StatusReporter
from specd.errors import SpecdError
from specd.generation import Catalog, Generation
from specd.go_template import check_template
from specd.metrics import Metrics, SchedulerObserver
from specd.pairs import (
    HISTORY_FILE,
    DrafterFetcher,
    History,
    HistoryWriter,
    Pairs,
    RuleFiles,
    Vocabularies,
    load_rules,
)
from specd.placement import (
    MEMORY_FILE,
    Cpu,
    Defaults,
    Devices,
    MemoryCorrections,
    Placer,
    machine_name,
    placement_config,
)
from specd.prompt import Renderer
from specd.registry import Registry, Traffic, default_folder
from specd.runner import Engine, Engines, Process, Upstream, probe, simulate
from specd.scheduler import Requirements, Scheduler, SchedulerLoop
from specd.settings import Settings
from specd.store import AsyncWriter, Library, StoreWriter

log = logging.getLogger(__name__)

# How long the first request waits for the store to be pruned (seconds): the disk may be slow, and
# another process may hold the store's lock.
PRUNE_S = 2.0

StartEngine = Callable[[core.EngineSpec], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonServices:
    """The daemon's services, and the machine's default settings."""

    app: web.Application
    generation: Generation
    keys: Keys
    origins: Origins
    rules: RuleFiles
    machine: Defaults
    readiness: Readiness
    scheduler: SchedulerLoop
    pairs: Pairs
    history_writer: HistoryWriter
    drafter_fetcher: DrafterFetcher
    library: Library
    writer: StoreWriter
    registry: Registry
    creator: Creator
    renderer: Renderer
    background_tasks: list[asyncio.Task[None]] = field(default_factory=list)


async def build_services(
    settings: Settings, command: Sequence[str], upstreams: Sequence[Upstream] = ()
) -> DaemonServices:
    """Probe the machine and return the services, not yet started.  Raises BadSetting."""
    devices, machine = await asyncio.to_thread(_probe_machine, settings, command)
    history, this_machine = _history(settings), machine_name(machine.devices)
    history_writer = HistoryWriter(history, this_machine)
    vocabularies = await asyncio.to_thread(Vocabularies.in_state_dir, history)
    library = Library(
        settings.models,
        demo=settings.demo,
        go_template=settings.go_template,
        read=vocabularies.read,
    )
    placer = _placer(settings, library, devices, machine, command)
    collector, readiness = Metrics(), Readiness()
    start_local = _local_engine_starter(settings, command, history_writer)
    engines = Engines(start_local, upstreams)
    catalog = Catalog(library, engines.models)
    scheduler = _scheduler(settings, machine, placer, engines, collector)
    rules = await asyncio.to_thread(load_rules, settings.pairs_file, serves=True)
    pairs = Pairs(
        library,
        rules,
        enabled=settings.speculative_decode,
        history=history,
        machine=this_machine,
        vocabularies=vocabularies,
        on_gpu=lambda: bool(machine.devices),
    )
    renderer = Renderer()
    writer = StoreWriter(settings.models, noprune=settings.noprune)
    traffic = Traffic(received=collector.pulled, sent=collector.pushed)
    registry = Registry(writer, keys=default_folder(), traffic=traffic)
    drafter_fetcher = DrafterFetcher(registry.pull, pairs.pair, enabled=settings.auto_pull_drafts)
    keys = Keys(key.get_secret_value() for key in settings.api_keys)
    origins = Origins(settings.origins)
    generation = Generation(
        catalog,
        pairs,
        scheduler,
        settings,
        render_jinja=renderer.render,
        on_leased=drafter_fetcher.request_drafter,
        on_answered=history_writer.count_answer,
    )
    status_reporter = StatusReporter(scheduler, readiness, devices=devices.driver_devices)
    monitoring = Monitoring(metrics=collector, state=status_reporter, not_ready_reason=readiness)
    creator = _creator(settings, writer, registry, command)
    app = build_app(
        generation=generation,
        library=catalog,
        scheduler=scheduler,
        settings=settings,
        registry=registry,
        store_services=StoreServices(writer=AsyncWriter(writer), creator=creator),
        keys=keys,
        origins=origins,
        monitoring=monitoring,
        drafter_fetch_status=drafter_fetcher.status_text,
    )
    return DaemonServices(
        app=app,
        generation=generation,
        keys=keys,
        origins=origins,
        rules=rules,
        machine=machine,
        readiness=readiness,
        scheduler=scheduler,
        pairs=pairs,
        history_writer=history_writer,
        drafter_fetcher=drafter_fetcher,
        library=library,
        writer=writer,
        registry=registry,
        creator=creator,
        renderer=renderer,
    )


async def start_services(services: DaemonServices, stop: asyncio.Event) -> None:
    """Start the services; return once the first request can be served.

    Pruning the store and scanning it for pairs continue in background tasks.
    """
    prune = asyncio.create_task(_prune(services.library, services.writer))
    scan = asyncio.create_task(asyncio.to_thread(services.pairs.scan, stop.is_set))
    services.background_tasks.extend((prune, scan))
    await asyncio.gather(
        asyncio.wait([prune], timeout=PRUNE_S), asyncio.to_thread(services.renderer.start)
    )
    services.scheduler.start()


def _creator(
    settings: Settings, writer: StoreWriter, registry: Registry, command: Sequence[str]
) -> Creator:
    return Creator(
        writer,
        check_template=check_template,
        pull=registry.pull,
        command=command,
        stall_s=settings.load_timeout_s,
        converter_dir=settings.converter_dir,
    )


def _probe_machine(settings: Settings, command: Sequence[str]) -> tuple[Devices, Defaults]:
    """Return the GPUs and the defaults that follow from them, such as context and loaded models.

    Blocks until the probe process answers: about a second with CUDA, less without GPU backends.
    """
    run_probe = functools.partial(probe, command)
    devices = Devices(run_probe(), probe_again=run_probe, igpu=settings.igpu)
    for warning in devices.unusable_gpus():
        log.warning("%s", warning)
    return devices, Defaults(devices=devices(), cpu=Cpu.read(), n_ctx=settings.context_length)


async def _prune(library: Library, writer: StoreWriter) -> None:
    """Prune the store.  Log a warning if it cannot be read, written or pruned."""
    if read_problem := await asyncio.to_thread(library.access_problem):
        log.warning("the store %s: none of its models is listed", read_problem)
    if write_problem := await asyncio.to_thread(writer.access_problem):
        log.warning("no model can be pulled, created or deleted: %s", write_problem)
        return
    try:
        await writer.run_exclusive(writer.prune)
    except SpecdError as error:
        log.warning("cannot prune the store: %s", error)


def _history(settings: Settings) -> History:
    folder = settings.state_dir
    if folder is None:
        log.warning(
            "the user has no home folder: the measurements of pairs are not stored;"
            " set SPECD_STATE_DIR"
        )
    return History(folder / HISTORY_FILE if folder is not None else None)


def _corrections(settings: Settings) -> MemoryCorrections:
    folder = settings.state_dir
    return MemoryCorrections(folder / MEMORY_FILE if folder is not None else None)


def _placer(
    settings: Settings,
    library: Library,
    devices: Devices,
    machine: Defaults,
    command: Sequence[str],
) -> Placer:
    return Placer(
        library.shape,
        functools.partial(simulate, command=command),
        placement_config=placement_config(settings, machine.devices),
        corrections=_corrections(settings),
        devices=devices,
        is_complete=devices.is_complete,
    )


def _local_engine_starter(
    settings: Settings, command: Sequence[str], history_writer: HistoryWriter
) -> StartEngine:
    def start(spec: core.EngineSpec) -> Engine:
        return Process(
            spec,
            load_timeout_s=settings.load_timeout_s,
            timeout_s=settings.engine_timeout_s,
            command=command,
            history_store=history_writer.open(spec),
        )

    return start


def _scheduler(
    settings: Settings,
    machine: Defaults,
    placer: Placer,
    engines: Engines,
    observer: SchedulerObserver,
) -> SchedulerLoop:
    decisions = Scheduler(
        Requirements(fill=machine.fill, min_automatic_ctx=machine.min_ctx),
        max_loaded=settings.max_loaded_models or machine.max_loaded,
        max_queue=settings.max_queue,
        default_keep_alive_s=settings.keep_alive_s,
    )
    return SchedulerLoop(
        decisions, engines.start, placer.place, placer.record_usage, observer=observer
    )
