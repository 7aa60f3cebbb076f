"""Formats values like Go: times, quoted strings, objects without empty fields."""

from __future__ import annotations

import datetime as dt
import json
from functools import lru_cache
from typing import Final

#: Go's longest duration in seconds; longer ones mean forever.
MAX_DURATION_S: Final = (2**63 - 1) / 1e9


def go_quote(text: str) -> str:
    """Quote a string like Go's %q."""
    return json.dumps(text, ensure_ascii=False)


def utc_time(unix_ns: int) -> str:
    """Return RFC 3339 in UTC ("…Z"), with nanoseconds without trailing zeros."""
    seconds, nanoseconds = divmod(unix_ns, 10**9)
    return f"{_utc_second(seconds)}{_fraction(nanoseconds, 9)}Z"


@lru_cache(maxsize=1)  # the lines of a stream share it
def _utc_second(unix_s: int) -> str:
    return f"{dt.datetime.fromtimestamp(unix_s, dt.UTC):%Y-%m-%dT%H:%M:%S}"


def local_time(moment: dt.datetime) -> str:
    """Return RFC 3339 in the server's time zone with its offset, or "Z" for none."""
    local = moment.astimezone()
    offset = f"{local:%z}"
    shown = "Z" if local.utcoffset() == dt.timedelta() else f"{offset[:3]}:{offset[3:5]}"
    return f"{local:%Y-%m-%dT%H:%M:%S}{_fraction(local.microsecond, 6)}{shown}"


def expiry_time(unix_s: float, now_ns: int) -> str:
    """Format the time of an unload; forever is Go's longest duration (292 years) from now."""
    latest = now_ns / 1e9 + MAX_DURATION_S
    return local_time(dt.datetime.fromtimestamp(min(unix_s, latest), dt.UTC))


def _fraction(value: int, width: int) -> str:
    digits = f"{value:0{width}d}".rstrip("0")
    return f".{digits}" if digits else ""


def omit_empty(**fields: object) -> dict[str, object]:
    """Return the fields that are not empty, like Go's `omitempty`."""
    return {key: value for key, value in fields.items() if value not in (None, "", 0, [], {}, ())}


def debug_info(prompt: str, n_images: int) -> dict[str, object]:
    """Return the answer to `_debug_render_only`; a count of 0 images is left out, as in Go."""
    return {"rendered_template": prompt} | omit_empty(image_count=n_images)
