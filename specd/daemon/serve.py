"""The daemon's life: listen, open the house, serve, stop in reverse."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence

from aiohttp import web

import specd
from specd.api.border import connection_log
from specd.daemon.exposure import exposure
from specd.daemon.house import built, open_house
from specd.daemon.listening import listen
from specd.daemon.logs import logging_to_stderr
from specd.errors import SpecdError
from specd.placement import Defaults
from specd.runner import ENGINE
from specd.sd_notify import notify
from specd.settings import Settings, set_without_effect, unknown_variables

log = logging.getLogger(__name__)

# After the engines have stopped every answer has its end: this is for writing it out.
LAST_LINES_S = 2.0
# Of one header, and of the request's first line: a browser may send the cookies of every server
# on this machine.  Go allows 1 MiB in all; aiohttp 8 KiB by itself, and 128 headers.
MAX_HEADER_BYTES = 2**16


async def run(settings: Settings, *, command: Sequence[str] = ENGINE) -> None:
    """Serve until SIGTERM or SIGINT; a second signal cuts running answers short.

    command: what starts an engine.  Raises BadSetting where nothing can be served.
    """
    stop, hurry = _signals()
    house = await built(settings, command)
    server = _server(house.app)
    await server.setup()
    try:
        site = await listen(server, settings)
        await open_house(house, stop)
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
    with logging_to_stderr(settings.debug):
        try:
            asyncio.run(run(settings))
        except SpecdError as error:
            log.error("%s", error)  # noqa: TRY400 - a sentence for the user, no traceback
            return 1
    return 0


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
    status = f"STATUS=listening on {where}"
    if open_to := exposure(server.addresses, settings):
        log.warning("%s", open_to)
        status += "; WARNING: open to strangers, SPECD_API_KEYS is not set"
    notify("READY=1", status)


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
