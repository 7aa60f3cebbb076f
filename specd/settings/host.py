"""Where the daemon listens: `OLLAMA_HOST` as Ollama reads it."""

from __future__ import annotations

import ipaddress
import logging
import re
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostAddress:
    """Where the daemon listens; an empty host is all interfaces, port 0 any free port."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """Where a client of this machine reaches the daemon; no trailing slash."""
        host = self.host
        if host in {"", "0.0.0.0"}:  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        elif host == "::":
            host = "::1"
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{self.port}{self.path}"


def is_loopback(host: str) -> bool:
    """Whether a daemon bound to `host` is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_host(text: str) -> HostAddress:
    """`[scheme://]host[:port][/path]` as Ollama reads it; never fails."""
    if text == "ollama.com":
        return HostAddress("https", "ollama.com", 443)
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "http", text
    default_port = {"http": 80, "https": 443}.get(scheme, 11434) if found else 11434
    hostport, _, path = rest.partition("/")
    host, port_text = _split_host_port(hostport)
    port = default_port
    if port_text is not None:
        if re.fullmatch(r"\+?[0-9]{1,10}", port_text) and int(port_text) <= 65535:
            port = int(port_text)
        else:
            log.warning("OLLAMA_HOST: invalid port %r, using %d", port_text, default_port)
    path = path.strip("/")
    return HostAddress(scheme, host, port, f"/{path}" if path else "")


def _split_host_port(hostport: str) -> tuple[str, str | None]:
    """Host and port text; port None where there is none (Go: net.SplitHostPort)."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\]:([^:]*)", hostport):
        return bracketed[1], bracketed[2]
    if hostport.count(":") == 1 and "[" not in hostport:
        host, _, port = hostport.partition(":")
        return host, port
    bare = hostport.strip("[]")
    try:
        return str(ipaddress.ip_address(bare)), None
    except ValueError:
        return hostport or "127.0.0.1", None
