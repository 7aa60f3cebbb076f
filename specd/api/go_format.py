"""How values look on the wire: compact JSON with Go's escapes, Go's times, Go's quotes."""

from __future__ import annotations

import datetime as dt
import json
from functools import lru_cache
from typing import Final

from specd.go_json_encoder import go_escape

#: Go's longest duration, in seconds: what counts as for ever.
MAX_DURATION_S: Final = (2**63 - 1) / 1e9


#: Made once: `json.dumps` makes an encoder for each call, and a stream has a line per token.
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dump_json(value: object) -> bytes:
    """Compact JSON in the order of the keys; raises ValueError for NaN and infinity."""
    return go_escape(_COMPACT.encode(value)).encode(errors="replace")


def go_quote(text: str) -> str:
    """A string as Go's %q shows it."""
    return json.dumps(text, ensure_ascii=False)


def utc_time(unix_ns: int) -> str:
    """RFC 3339 with nanoseconds, trailing zeros dropped, in UTC ("…Z")."""
    seconds, nanoseconds = divmod(unix_ns, 10**9)
    return f"{_utc_second(seconds)}{_fraction(nanoseconds, 9)}Z"


@lru_cache(maxsize=1)  # the lines of a stream share it
def _utc_second(unix_s: int) -> str:
    return f"{dt.datetime.fromtimestamp(unix_s, dt.UTC):%Y-%m-%dT%H:%M:%S}"


def local_time(moment: dt.datetime) -> str:
    """RFC 3339 in the server's zone, with its offset ("Z" where that is none)."""
    local = moment.astimezone()
    offset = f"{local:%z}"
    shown = "Z" if local.utcoffset() == dt.timedelta() else f"{offset[:3]}:{offset[3:5]}"
    return f"{local:%Y-%m-%dT%H:%M:%S}{_fraction(local.microsecond, 6)}{shown}"


def expiry_time(unix_s: float, now_ns: int) -> str:
    """When a model leaves; for ever is Go's longest duration from now (292 years)."""
    latest = now_ns / 1e9 + MAX_DURATION_S
    return local_time(dt.datetime.fromtimestamp(min(unix_s, latest), dt.UTC))


def _fraction(value: int, width: int) -> str:
    digits = f"{value:0{width}d}".rstrip("0")
    return f".{digits}" if digits else ""


def omit_empty(**fields: object) -> dict[str, object]:
    """The fields that are not empty: Go's `omitempty`."""
    return {key: value for key, value in fields.items() if value not in (None, "", 0, [], {}, ())}


def debug_info(prompt: str, n_images: int) -> dict[str, object]:
    """Return the answer to `_debug_render_only`; no images are not counted, as in Go."""
    return {"rendered_template": prompt} | omit_empty(image_count=n_images)
