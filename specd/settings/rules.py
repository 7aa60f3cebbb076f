"""Parse rules for each kind of variable, with the texts that describe the allowed values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import SecretStr

from specd.core import KV_CACHE_TYPES, MAX_SLOTS
from specd.daemon_address import KEYS_ALLOWED, HostAddress, parse_host, parse_keys
from specd.durations import parse_go_duration


@dataclass(frozen=True, slots=True)
class ParseRule:
    """A parser for the text of a variable.

    parse: raises ValueError for an invalid text.  allowed: completes "must be ...".
    unset: returns the value if neither the environment nor the declaration gives one.
    is_secret: whether errors must not show the text.
    """

    parse: Callable[[str], object]
    allowed: str
    unset: Callable[[], object] = lambda: None
    is_secret: bool = False


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _parse_bool(text: str) -> bool:
    """Parse a boolean like Go's strconv.ParseBool."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


def _parse_ollama_bool(text: str) -> bool:
    """Return True unless the text means false (Ollama: envconfig.BoolWithDefault)."""
    return text not in _FALSE


def _parse_uint(text: str) -> int:
    """Parse a 64-bit integer like Go's strconv.ParseUint."""
    if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= 2**64:
        raise ValueError
    return int(text)


def _parse_count(text: str) -> int:
    n = max(1, _parse_uint(text))
    if n > MAX_SLOTS:
        raise ValueError(f"{n} is more than {MAX_SLOTS}")
    return n


def _parse_kv_cache_type(text: str) -> str:
    if text.lower() not in KV_CACHE_TYPES:
        raise ValueError(f"no such number format: {text}")
    return text.lower()


def _parse_seconds(text: str) -> float:
    """Parse a Go duration or a whole number of seconds; return seconds."""
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return float(int(text))
    return parse_go_duration(text)


def _parse_keep_alive(text: str) -> float:
    seconds = _parse_seconds(text)
    return math.inf if seconds < 0 else seconds


def _parse_load_timeout(text: str) -> float:
    seconds = _parse_seconds(text)
    return math.inf if seconds <= 0 else seconds


def _parse_grace(text: str) -> float:
    seconds = _parse_seconds(text)
    if seconds < 0:
        raise ValueError
    return seconds


def _parse_debug(text: str) -> int:
    """Return 0 (info), 1 (debug) or 2 (trace); an unknown text is info."""
    if text in _TRUE:
        return 1
    return min(2, int(text)) if re.fullmatch(r"\+?[0-9]{1,18}", text) else 0


def _parse_fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:  # also refuses nan
        raise ValueError
    return value


def _parse_threshold(text: str) -> float | None:
    return None if text.lower() == "auto" else _parse_fraction(text)


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no home directory
        raise ValueError from error


def _xdg_dir(variable: str, default: str) -> Path | None:
    """Return a folder of the XDG rules; None for a user without a home."""
    folder = Path(os.environ.get(variable, ""))
    try:
        return folder if folder.is_absolute() else Path(default).expanduser()
    except RuntimeError:
        return None


def _service_dir() -> Path | None:
    """Return the StateDirectory= of a systemd service; None outside of one."""
    folders = os.environ.get("STATE_DIRECTORY", "")
    return Path(folders.split(":")[0]) if folders else None


def _default_state_dir() -> Path | None:
    base = _xdg_dir("XDG_STATE_HOME", "~/.local/state")
    return _service_dir() or (base and base / "specd")


def _default_converter_dir() -> Path | None:
    service, base = _service_dir(), _xdg_dir("XDG_CACHE_HOME", "~/.cache")
    return service / "converter" if service else base and base / "specd" / "converter"


def own_config_dir() -> Path | None:
    """Return the XDG folder of the user's configuration; None for a user without a home."""
    base = _xdg_dir("XDG_CONFIG_HOME", "~/.config")
    return base and base / "specd"


def _parse_device(text: str) -> str:
    """Check the syntax; whether the device exists is only known after the GPUs are probed."""
    if not re.fullmatch(r"auto|cpu|[0-9]{1,3}|[A-Za-z][\w.:-]*", text, re.ASCII):
        raise ValueError
    return text


def _parse_secret_keys(text: str) -> tuple[SecretStr, ...]:
    """Parse keys as secrets, so that no log and no error shows them."""
    return tuple(map(SecretStr, parse_keys(text)))


def _parse_log_format(text: str) -> str:
    if text not in LOG_FORMATS:
        raise ValueError
    return text


LOG_FORMATS = ("text", "json")
_BOOL_WORDS = "1 or 0 (true, false, t, f)"
_DURATION_WORDS = "a duration (`90s`, `5m`, `1h30m`) or a whole number of seconds"

HostSetting = Annotated[HostAddress, ParseRule(parse_host, "`[scheme://]host[:port]`")]
PathSetting = Annotated[Path, ParseRule(_parse_path, "a path")]
FileSetting = Annotated[Path | None, ParseRule(_parse_path, "the path of a file")]
FolderSetting = Annotated[Path | None, ParseRule(_parse_path, "a path")]
StateSetting = Annotated[Path | None, ParseRule(_parse_path, "a path", unset=_default_state_dir)]
ConverterSetting = Annotated[
    Path | None, ParseRule(_parse_path, "a path", unset=_default_converter_dir)
]
FlagSetting = Annotated[
    bool, ParseRule(_parse_ollama_bool, f"{_BOOL_WORDS}; any other text is true")
]
AutoFlagSetting = Annotated[
    bool | None, ParseRule(_parse_ollama_bool, f"{_BOOL_WORDS}; any other text is true")
]
StrictFlagSetting = Annotated[bool | None, ParseRule(_parse_bool, _BOOL_WORDS)]
UintSetting = Annotated[int, ParseRule(_parse_uint, "a whole number from 0 to 2^64−1")]
CountSetting = Annotated[
    int, ParseRule(_parse_count, f"a whole number up to {MAX_SLOTS} (0 means 1)")
]
KeepAliveSetting = Annotated[
    float, ParseRule(_parse_keep_alive, f"{_DURATION_WORDS} (less than 0: never unload)")
]
LoadTimeoutSetting = Annotated[
    float, ParseRule(_parse_load_timeout, f"{_DURATION_WORDS} (0 or less: no limit)")
]
GraceSetting = Annotated[float, ParseRule(_parse_grace, f"{_DURATION_WORDS}, not below zero")]
DebugSetting = Annotated[int, ParseRule(_parse_debug, "0 (info), 1 (debug) or 2 (trace)")]
KvCacheTypeSetting = Annotated[
    str, ParseRule(_parse_kv_cache_type, f"one of {', '.join(KV_CACHE_TYPES)}")
]
ListSetting = Annotated[
    tuple[str, ...],
    ParseRule(lambda text: tuple(text.split(",")), "a list separated by commas", unset=tuple),
]
ThresholdSetting = Annotated[
    float | None, ParseRule(_parse_threshold, "auto, or a number from 0 to 1")
]
DeviceSetting = Annotated[
    str, ParseRule(_parse_device, "auto, cpu, or a GPU's number, UUID or name (`CUDA1`)")
]
KeysSetting = Annotated[
    tuple[SecretStr, ...],
    ParseRule(_parse_secret_keys, KEYS_ALLOWED, unset=tuple, is_secret=True),
]
LogFormatSetting = Annotated[str, ParseRule(_parse_log_format, " or ".join(LOG_FORMATS))]
