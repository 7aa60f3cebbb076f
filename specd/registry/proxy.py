"""The proxy of a request, by the environment: HTTP_PROXY, HTTPS_PROXY, NO_PROXY.

Ours and not aiohttp's `trust_env`, which would also take passwords from `.netrc`.
"""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies, proxy_bypass

from yarl import URL


def proxy_for(url: URL) -> URL | None:
    """None for this machine's own registries, as for Go's programs."""
    if url.host is None or _is_loopback(url.host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.authority):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
