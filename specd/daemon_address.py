"""The daemon's address and API keys: `OLLAMA_HOST` and `SPECD_API_KEYS`.

The settings and the commands read both variables by these rules.  Commands import this module
alone, because importing pydantic takes longer than the daemon takes to answer.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specd.errors import BadSetting

HOST_VARIABLE: Final = "OLLAMA_HOST"
DEFAULT_HOST: Final = "127.0.0.1:11434"
KEYS_VARIABLE: Final = "SPECD_API_KEYS"
#: Characters of a key; shorter ones are easy to guess.
_SHORTEST_KEY: Final = 16
#: Completes "must be ...".
KEYS_ALLOWED: Final = (
    f"keys separated by commas, each of {_SHORTEST_KEY} or more visible ASCII characters"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostAddress:
    """The address that the daemon listens on.

    host: empty for all interfaces.  port: 0 for any free port.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """Return the URL for clients on this machine, without a trailing slash."""
        host = self.host
        if host in {"", "0.0.0.0"}:  # noqa: S104 - compared, not bound
            host = "127.0.0.1"
        elif host == "::":
            host = "::1"
        shown = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{shown}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """The daemon's URL and the API key that a command sends.

    url: without a trailing slash.  key: sent as a bearer token; "" if none is set.
    """

    url: str
    key: str


def daemon_address(environment: Mapping[str, str] | None = None) -> DaemonAddress:
    """Return the daemon's URL and the first key of SPECD_API_KEYS.

    environment: None for this process's own.  Raises BadSetting for invalid keys.
    """
    variables = os.environ if environment is None else environment
    host = strip_quotes(variables.get(HOST_VARIABLE, "")) or DEFAULT_HOST
    text = strip_quotes(variables.get(KEYS_VARIABLE, ""))
    try:
        keys = parse_keys(text) if text else ()
    except ValueError:
        raise BadSetting(f"{KEYS_VARIABLE} must be {KEYS_ALLOWED}") from None
    return DaemonAddress(parse_host(host).url, keys[0] if keys else "")


def strip_quotes(value: str) -> str:
    """Return the value without the spaces and quotes around it, as Ollama reads a variable."""
    return value.strip().strip("\"'")


def parse_keys(text: str) -> tuple[str, ...]:
    """Return the keys of a list separated by commas.

    Raises ValueError, whose text shows no key.
    """
    keys = tuple(key.strip() for key in text.split(","))
    if any(not re.fullmatch(rf"[!-~]{{{_SHORTEST_KEY},}}", key) for key in keys):
        raise ValueError
    return keys


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a daemon that is bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_host(text: str) -> HostAddress:
    """Parse `[scheme://]host[:port][/path]` as Ollama does.

    An invalid port is logged and replaced by the scheme's default.
    """
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
    """Return host and port text; None if there is no port (Go: net.SplitHostPort)."""
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
