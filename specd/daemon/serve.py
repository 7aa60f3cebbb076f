"""Runs the daemon: builds the services, listens, serves, and stops in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence

import specd
from specd.api.error_handling import connection_log
from specd.daemon.app import DaemonServices, build_services, start_services
from specd.daemon.fd_limits import (
    accept_backlog,
    max_connections,
    raise_limit,
    rate_limit_accept_errors,
)
from specd.daemon.http_server import HttpServer
from specd.daemon.logs import logging_to_stderr
from specd.daemon.reload import Reload, ReloadableEnvironment, warn_unknown_variables
from specd.daemon.signals import Signals
from specd.daemon.sockets import apply_systemd_sockets, bind, exposure, listening_status, url_of
from specd.daemon.watchdog import run_watchdog, status
from specd.errors import BadSetting, SpecdError
from specd.placement import Defaults
from specd.runner import ENGINE
from specd.sd_notify import Systemd
from specd.settings import Settings, find_ineffective

log = logging.getLogger(__name__)

# For sending the ends of answers, after the engines have stopped.
FLUSH_TIMEOUT_S = 2.0
# After this time systemd is told that the GPU probe is slow; everything else takes under a second.
SLOW_START_S = 5.0
# For engines that are slow to end, in addition to the grace of running answers.
STOP_MARGIN_S = 20.0
# For systemd to read a notification.
NOTIFY_TIMEOUT_S = 5.0
# Limit of one header and of the request line: a browser may send the cookies of every server on
# this machine.  Go allows 1 MiB in total; aiohttp's default is 8 KiB, and 128 headers.
MAX_HEADER_BYTES = 2**16


async def run(settings: Settings, *, command: Sequence[str] = ENGINE) -> None:
    """Serve until SIGTERM or SIGINT.  A second signal ends running answers; SIGHUP reloads.

    command: starts an engine process.  Raises BadSetting if the daemon cannot serve.
    """
    variables = ReloadableEnvironment(settings)
    systemd = _systemd()
    settings = apply_systemd_sockets(settings, systemd.sockets)
    signals = Signals.install()
    stop = signals.stop
    rate_limit_accept_errors()
    n_descriptors = raise_limit()
    services = await _build_with_status(settings, command, systemd)
    server = HttpServer(
        services.app,
        limit=max_connections(n_descriptors),
        timeout_s=settings.client_timeout_s,
        shutdown_timeout_s=FLUSH_TIMEOUT_S,
        auto_decompress=False,
        access_log=None,
        logger=connection_log,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )
    async with _close_on_exit(services, server):
        sockets = systemd.sockets or await bind(settings.host)
        await server.start(sockets, accept_backlog=accept_backlog(n_descriptors))
        urls = _log_startup(server, settings, services.machine)  # before the first request's line
        await start_services(services, stop)
        services.readiness.reason = ""
        reload = Reload(services, settings, variables, systemd, server.addresses)

        def current_status() -> str:
            """Return the status line; a reload may change the exposure."""
            return listening_status(urls, server.addresses, reload.settings)

        systemd.notify("READY=1", f"STATUS={current_status()}", timeout_s=NOTIFY_TIMEOUT_S)
        watchdog_task = asyncio.create_task(
            run_watchdog(
                systemd,
                stuck=services.scheduler.stuck,
                status=lambda: status(
                    "stopping" if stop.is_set() else current_status(), services.scheduler
                ),
            )
        )
        reload_task = asyncio.create_task(reload.reload_on(signals.reload))
        services.background_tasks.extend((watchdog_task, reload_task))
        await stop.wait()
        services.readiness.reason = "stopping"
        reload_task.cancel()
        log.info("stopping: running answers have %.0f s to finish", settings.shutdown_grace_s)
        _notify_stopping(systemd, settings)
        server.stop_listening()
        await server.wait_for_first_requests()
        await services.scheduler.stop(settings.shutdown_grace_s, signals.force_stop)
    log.info("stopped")


def main(settings: Settings) -> int:
    """Run `specd serve` and return the exit status."""
    with logging_to_stderr(settings.debug, settings.log_format):
        try:
            asyncio.run(run(settings))
        except SpecdError as error:
            log.error("%s", error)  # noqa: TRY400 - a text for the user, no traceback
            return 1
    return 0


@contextlib.asynccontextmanager
async def _close_on_exit(services: DaemonServices, server: HttpServer) -> AsyncIterator[None]:
    """Close all services on exit, even if closing one fails; the last one listed closes first."""
    async with contextlib.AsyncExitStack() as exit_stack:
        exit_stack.push_async_callback(asyncio.to_thread, services.renderer.close)
        exit_stack.push_async_callback(server.close)
        exit_stack.push_async_callback(services.registry.close)
        exit_stack.push_async_callback(services.creator.close)
        exit_stack.push_async_callback(services.drafter_fetcher.close)
        exit_stack.push_async_callback(services.history_writer.close)
        exit_stack.push_async_callback(services.scheduler.stop)
        yield


async def _build_with_status(
    settings: Settings, command: Sequence[str], systemd: Systemd
) -> DaemonServices:
    build_task = asyncio.ensure_future(build_services(settings, command))
    await asyncio.wait({build_task}, timeout=SLOW_START_S)
    if not build_task.done():
        systemd.notify("STATUS=starting: waiting for llama.cpp to list the GPUs")
    return await build_task


def _systemd() -> Systemd:
    try:
        return Systemd.from_environment()
    except OSError as error:
        raise BadSetting(f"a file descriptor of systemd is not a socket: {error}") from error


def _notify_stopping(systemd: Systemd, settings: Settings) -> None:
    """Ask systemd for enough time to stop, whatever the unit's TimeoutStopSec is."""
    allowed_s = settings.shutdown_grace_s + STOP_MARGIN_S
    systemd.notify(
        "STOPPING=1", f"EXTEND_TIMEOUT_USEC={allowed_s * 1e6:.0f}", timeout_s=NOTIFY_TIMEOUT_S
    )


def _log_startup(server: HttpServer, settings: Settings, machine: Defaults) -> str:
    """Log the address, the GPUs and the warnings at the start; return the addresses as text."""
    urls = " and ".join(map(url_of, server.addresses))
    log.info("specd %s listens on %s, models in %s", specd.__version__, urls, settings.models)
    for device in machine.devices:
        free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
        facts = device.name, device.id, device.kind, free, total
        log.info("%s (%s, %s): %.1f of %.1f GiB free", *facts)
    for variable, why in find_ineffective().items():
        log.warning("%s is set, but has no effect: %s", variable, why)
    warn_unknown_variables(os.environ)
    if exposure_warning := exposure(server.addresses, settings):
        log.warning("%s", exposure_warning)
    return urls
