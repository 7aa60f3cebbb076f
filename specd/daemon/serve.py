"""The daemon's life: listen, open the house, serve, stop in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

import specd
from specd.api.border import connection_log
from specd.daemon.arrivals import Arrivals
from specd.daemon.descriptors import at_once, max_connections, quiet_about_accept, raise_limit
from specd.daemon.door import Runner
from specd.daemon.exposure import exposure, standing
from specd.daemon.house import House, built, open_house
from specd.daemon.listening import as_passed, listen, where
from specd.daemon.logs import logging_to_stderr
from specd.daemon.reload import Reload, warn_of_unknown
from specd.daemon.signals import Signals
from specd.daemon.variables import Variables
from specd.daemon.watchdog import attend, status
from specd.errors import BadSetting, SpecdError
from specd.placement import Defaults
from specd.runner import ENGINE
from specd.sd_notify import Systemd
from specd.settings import Settings, set_without_effect

log = logging.getLogger(__name__)

# After the engines have stopped every answer has its end: this is for writing it out.
LAST_LINES_S = 2.0
# All else that a start waits for takes no second.
SLOW_S = 5.0
# Beside the answers' grace, for engines that are slow to end; and for READY to be read.
STOPPING_S = 20.0
NOTIFY_S = 5.0
# Of one header, and of the request's first line: a browser may send the cookies of every server
# on this machine.  Go allows 1 MiB in all; aiohttp 8 KiB by itself, and 128 headers.
MAX_HEADER_BYTES = 2**16


async def run(settings: Settings, *, command: Sequence[str] = ENGINE) -> None:
    """Serve until SIGTERM or SIGINT; a second signal cuts running answers short, SIGHUP reloads.

    command: what starts an engine.  Raises BadSetting where nothing can be served.
    """
    variables = Variables(settings)
    systemd = _systemd()
    settings = as_passed(settings, systemd.sockets)
    signals = Signals.caught()
    stop = signals.stop
    quiet_about_accept()
    n_descriptors = raise_limit()
    house = await _built(settings, command, systemd)
    server = _server(house.app, settings, n_descriptors)
    arrivals = Arrivals(house.app)
    await server.setup()
    async with _left_tidy(house, server):
        sites = await listen(server, settings, systemd.sockets, at_once=at_once(n_descriptors))
        places = _announce(server, settings, house.machine)  # before anybody's request is
        await open_house(house, stop)
        house.readiness.reason = ""
        reload = Reload(house, settings, variables, systemd, server.addresses)

        def words() -> str:
            """As it stands now: a reload may let strangers in, or keep them out."""
            return standing(places, server.addresses, reload.settings)

        systemd.notify("READY=1", f"STATUS={words()}", patience_s=NOTIFY_S)
        attending = asyncio.create_task(
            attend(
                systemd,
                stuck=house.scheduler.stuck,
                status=lambda: status("stopping" if stop.is_set() else words(), house.scheduler),
            )
        )
        reloading = asyncio.create_task(reload.whenever(signals.reload))
        house.chores.extend((attending, reloading))
        await stop.wait()
        house.readiness.reason = "stopping"
        reloading.cancel()
        log.info("stopping: running answers have %.0f s to end", settings.shutdown_grace_s)
        _say_stopping(systemd, settings)
        for site in sites:
            await site.stop()
        await arrivals.heard(server)
        await house.scheduler.stop(settings.shutdown_grace_s, signals.hurry)
    log.info("stopped")


def main(settings: Settings) -> int:
    """`specd serve`: the exit status."""
    with logging_to_stderr(settings.debug, settings.log_format):
        try:
            asyncio.run(run(settings))
        except SpecdError as error:
            log.error("%s", error)  # noqa: TRY400 - a sentence for the user, no traceback
            return 1
    return 0


@contextlib.asynccontextmanager
async def _left_tidy(house: House, server: web.AppRunner) -> AsyncIterator[None]:
    """Everything is closed, whatever becomes of the rest: the last that is named here first."""
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(asyncio.to_thread, house.renderer.close)
        closing.push_async_callback(server.cleanup)
        closing.push_async_callback(house.registry.close)
        closing.push_async_callback(house.creator.close)
        closing.push_async_callback(house.fetching.close)
        closing.push_async_callback(house.notebooks.close)
        closing.push_async_callback(house.scheduler.stop)
        yield


async def _built(settings: Settings, command: Sequence[str], systemd: Systemd) -> House:
    building = asyncio.ensure_future(built(settings, command))
    await asyncio.wait({building}, timeout=SLOW_S)
    if not building.done():
        systemd.notify("STATUS=starting: llama.cpp is asked which GPUs it can use, and is slow")
    return await building


def _server(app: web.Application, settings: Settings, n_descriptors: int) -> web.AppRunner:
    # A client that goes away ends its handler, and that frees the slot.
    return Runner(
        app,
        limit=max_connections(n_descriptors),
        timeout_s=settings.client_timeout_s,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        logger=connection_log,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        shutdown_timeout=LAST_LINES_S,
    )


def _systemd() -> Systemd:
    try:
        return Systemd.take()
    except OSError as error:
        raise BadSetting(f"systemd hands over what is no socket: {error}") from error


def _say_stopping(systemd: Systemd, settings: Settings) -> None:
    """However long the answers' grace is: the unit's own TimeoutStopSec need not know of it."""
    allowed_s = settings.shutdown_grace_s + STOPPING_S
    systemd.notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={allowed_s * 1e6:.0f}", patience_s=NOTIFY_S)


def _announce(server: web.AppRunner, settings: Settings, machine: Defaults) -> str:
    """What the log says of the start; where it listens, in words."""
    places = " and ".join(where(server))
    log.info("specd %s listens on %s, models in %s", specd.__version__, places, settings.models)
    for device in machine.devices:
        free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
        facts = device.name, device.id, device.kind, free, total
        log.info("%s (%s, %s): %.1f of %.1f GiB are free", *facts)
    for variable, why in set_without_effect().items():
        log.warning("%s is set, and has no effect here: %s", variable, why)
    warn_of_unknown(os.environ)
    if open_to := exposure(server.addresses, settings):
        log.warning("%s", open_to)
    return places
