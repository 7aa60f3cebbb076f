"""The daemon's socket."""

from __future__ import annotations

from aiohttp import web

from specd.errors import BadSetting
from specd.settings import Settings


async def listen(server: web.AppRunner, settings: Settings) -> web.TCPSite:
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
