"""Parser for Go durations ("1h30m", "-1m", "250ms"), which Ollama's clients send."""

from __future__ import annotations

import re

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # micro sign
    "μs": 10**3,  # Greek mu
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_MAX_NS = 2**63 - 1
#: What Go escapes in a quoted string.
_ESCAPED = re.compile(r"[^ !#-\[\]-\x7f]")
_TERM = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[^0-9.]*)")


def parse_go_duration(text: str) -> float:
    """Return a Go duration in seconds; only "0" needs no unit (Go: time.ParseDuration).

    Raises ValueError with Go's own text, which Ollama returns to its clients.
    """
    rest = text[1:] if text[:1] in {"+", "-"} else text
    if rest == "0":
        return 0.0
    if not rest:
        raise _invalid(text)
    total_ns = 0
    while rest:
        term = _TERM.match(rest)
        assert term is not None  # every part of the pattern may be empty
        total_ns += _term_ns(term, text)
        rest = rest[term.end() :]
        if total_ns > _MAX_NS:
            raise _invalid(text)
    return (-total_ns if text[0] == "-" else total_ns) / 10**9


def _term_ns(term: re.Match[str], text: str) -> int:
    whole, fraction, unit = term["whole"], term["fraction"] or "", term["unit"]
    if not whole and not fraction:
        raise _invalid(text)
    if not unit:
        raise ValueError(f"time: missing unit in duration {_quote(text)}")
    scale = _NANOSECONDS.get(unit)
    if scale is None:
        raise ValueError(f"time: unknown unit {_quote(unit)} in duration {_quote(text)}")
    # Nineteen digits exceed 2^63 ns in any unit.  Refuse them before int() parses a long text.
    if len(whole.lstrip("0")) > 19:
        raise _invalid(text)
    # Eighteen digits are finer than a nanosecond in any unit.
    part = int(fraction[:18].ljust(18, "0")) * scale // 10**18
    return int(whole or "0") * scale + part


def _invalid(text: str) -> ValueError:
    return ValueError(f"time: invalid duration {_quote(text)}")


def _quote(text: str) -> str:
    r"""Quote as Go does: escape `"` and `\`, write control and non-ASCII bytes as `\xNN`."""
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in '"\\':
        return "\\" + character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogatepass"))
