"""Every setting of specd, declared once.  The only reader of the environment.

OLLAMA_* follow Ollama's own parse rules (envconfig): a value that cannot be read is a warning and
the default.  SPECD_* are ours: a value that cannot be used is an error.  `docs/settings.md` and
`configs/specd.env` are generated from the declarations below.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from specd.core import KV_CACHE_TYPES, MAX_SLOTS
from specd.durations import parse_go_duration
from specd.errors import BadSetting
from specd.no_effect import NO_EFFECT, OF_INSTALLER

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


# --------------------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Rule:
    """How the text of a variable becomes a value.

    parse: raises ValueError for a text that it cannot use.  allowed: completes "must be ...".
    unset: what gives the value where neither the environment nor the declaration does.
    """

    parse: Callable[[str], object]
    allowed: str
    unset: Callable[[], object] = lambda: None


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


_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _parse_bool(text: str) -> bool:
    """Go: strconv.ParseBool."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError


def _parse_ollama_bool(text: str) -> bool:
    """What is set and is not a word for false is true (Ollama: envconfig.BoolWithDefault)."""
    return text not in _FALSE


def _parse_uint(text: str) -> int:
    """Go: strconv.ParseUint, 64 bits."""
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
    """A Go duration, or a bare whole number of seconds."""
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
    """0 info, 1 debug, 2 trace; what is neither true nor a number is info."""
    if text in _TRUE:
        return 1
    return min(2, int(text)) if re.fullmatch(r"\+?[0-9]{1,18}", text) else 0


def _parse_fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:  # also refuses nan
        raise ValueError
    return value


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no home directory
        raise ValueError from error


def _parse_file(text: str) -> Path:
    path = _parse_path(text)
    if not path.is_file():
        raise ValueError
    return path


def _default_state_dir() -> Path | None:
    """Where systemd or the XDG rules put it; None for a user who has no home."""
    if of_service := os.environ.get("STATE_DIRECTORY", ""):
        return Path(of_service.split(":")[0])
    of_user = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (of_user if of_user.is_absolute() else Path("~/.local/state").expanduser()) / "specd"
    except RuntimeError:
        return None


_BOOL_WORDS = "1 or 0 (true, false, t, f)"
_DURATION_WORDS = "a duration (`90s`, `5m`, `1h30m`) or a whole number of seconds"

HostSetting = Annotated[HostAddress, Rule(parse_host, "`[scheme://]host[:port]`")]
PathSetting = Annotated[Path, Rule(_parse_path, "a path")]
FileSetting = Annotated[Path | None, Rule(_parse_file, "the path of an existing file")]
FolderSetting = Annotated[Path | None, Rule(_parse_path, "a path")]
StateSetting = Annotated[Path | None, Rule(_parse_path, "a path", unset=_default_state_dir)]
FlagSetting = Annotated[bool, Rule(_parse_ollama_bool, f"{_BOOL_WORDS}; any other text is true")]
AutoFlagSetting = Annotated[
    bool | None, Rule(_parse_ollama_bool, f"{_BOOL_WORDS}; any other text is true")
]
StrictFlagSetting = Annotated[bool | None, Rule(_parse_bool, _BOOL_WORDS)]
UintSetting = Annotated[int, Rule(_parse_uint, "a whole number ≥ 0")]
CountSetting = Annotated[int, Rule(_parse_count, f"a whole number up to {MAX_SLOTS}; 0 is 1")]
KeepAliveSetting = Annotated[
    float, Rule(_parse_keep_alive, f"{_DURATION_WORDS}; below zero is for ever")
]
LoadTimeoutSetting = Annotated[
    float, Rule(_parse_load_timeout, f"{_DURATION_WORDS}; zero and below is for ever")
]
GraceSetting = Annotated[float, Rule(_parse_grace, f"{_DURATION_WORDS}, not below zero")]
DebugSetting = Annotated[int, Rule(_parse_debug, "0 (info), 1 (debug) or 2 (trace)")]
KvCacheTypeSetting = Annotated[str, Rule(_parse_kv_cache_type, ", ".join(KV_CACHE_TYPES))]
ListSetting = Annotated[
    tuple[str, ...], Rule(lambda text: tuple(text.split(",")), "a list with commas", unset=tuple)
]
FractionSetting = Annotated[float, Rule(_parse_fraction, "a number from 0 to 1")]


# --------------------------------------------------------------------------- declarations


def _setting(variable: str, default: str, description: str) -> Any:
    """Declare a setting; `default` is what a user would write, empty for none."""
    return Field(
        default=default, validate_default=True, validation_alias=variable, description=description
    )


class Settings(BaseSettings):
    """`Settings()` reads the environment; keyword arguments (typed values) win over it.

    Raises BadSetting, naming the variable, what was given and what is allowed.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        case_sensitive=True,
        enable_decoding=False,
        populate_by_name=True,
        extra="forbid",
    )

    host: HostSetting = _setting(
        "OLLAMA_HOST",
        "127.0.0.1:11434",
        "Where the daemon listens and where the commands look for it. `:11434` is all interfaces.",
    )
    models: PathSetting = _setting(
        "OLLAMA_MODELS", "~/.ollama/models", "The model store, shared with Ollama."
    )
    keep_alive_s: KeepAliveSetting = _setting(
        "OLLAMA_KEEP_ALIVE", "5m", "How long a model stays loaded after its last request."
    )
    load_timeout_s: LoadTimeoutSetting = _setting(
        "OLLAMA_LOAD_TIMEOUT",
        "5m",
        "How long a load or a quantization may show no progress before it ends.",
    )
    num_parallel: CountSetting = _setting(
        "OLLAMA_NUM_PARALLEL", "1", "Requests that one model answers at the same time."
    )
    max_loaded_models: UintSetting = _setting(
        "OLLAMA_MAX_LOADED_MODELS",
        "0",
        "Models that may be loaded at the same time; 0 is three per GPU, or three without one.",
    )
    max_queue: UintSetting = _setting(
        "OLLAMA_MAX_QUEUE", "512", "Requests that may wait for a load; more are answered 503."
    )
    context_length: UintSetting = _setting(
        "OLLAMA_CONTEXT_LENGTH", "0", "Context of a request in tokens; 0 chooses by GPU memory."
    )
    flash_attention: AutoFlagSetting = _setting(
        "OLLAMA_FLASH_ATTENTION", "", "Flash attention; unset uses it where the device can."
    )
    kv_cache_type: KvCacheTypeSetting = _setting(
        "OLLAMA_KV_CACHE_TYPE", "f16", "Number format of the KV cache."
    )
    go_template: AutoFlagSetting = _setting(
        "OLLAMA_GO_TEMPLATE",
        "",
        "Whether a model's Go template wins over its GGUF's Jinja template; unset lets the better"
        " one win.",
    )
    debug: DebugSetting = _setting("OLLAMA_DEBUG", "0", "How much is logged.")
    origins: ListSetting = _setting(
        "OLLAMA_ORIGINS",
        "",
        "Browser origins that may call the API beside the local ones; `*` in one is any text.",
    )
    noprune: FlagSetting = _setting(
        "OLLAMA_NOPRUNE", "0", "Keep blobs that no model names any more, at start and afterwards."
    )
    nohistory: FlagSetting = _setting(
        "OLLAMA_NOHISTORY",
        "0",
        "`specd run` does not remember what is typed; else it does, in `prompts` below"
        " `SPECD_STATE_DIR`, readable by its owner alone.",
    )
    speculative_decode: FlagSetting = _setting(
        "OLLAMA_SPECULATIVE_DECODE", "1", "Speculative decoding, for all models."
    )
    prompt_lookup: FlagSetting = _setting(
        "SPECD_PROMPT_LOOKUP",
        "1",
        "Draft what followed the same tokens earlier in prompt or answer, where that pays.",
    )
    pairs_file: FileSetting = _setting(
        "SPECD_PAIRS",
        "",
        "A file of your own pairs (target and drafter), read before the registry.",
    )
    state_dir: StateSetting = _setting(
        "SPECD_STATE_DIR",
        "",
        "Where what was learned of the pairs is kept; unset is systemd's `$STATE_DIRECTORY`, else"
        " `$XDG_STATE_HOME/specd`, else `~/.local/state/specd`.",
    )
    trace_dir: FolderSetting = _setting(
        "SPECD_TRACE_DIR",
        "",
        "Where each engine writes down what its controller saw and decided, at most 64 MiB, without"
        " text or tokens, for `specd trace`; unset writes nothing.",
    )
    demo: StrictFlagSetting = _setting(
        "SPECD_DEMO",
        "",
        "List the model `specd-demo`; unset lists it while the store is empty.",
    )
    acceptance_threshold: FractionSetting = _setting(
        "SPECD_ACCEPTANCE_THRESHOLD",
        "0.4",
        "Accepted ÷ drafted below which a request stops drafting, whatever the cost model says.",
    )
    shutdown_grace_s: GraceSetting = _setting(
        "SPECD_SHUTDOWN_GRACE", "10s", "How long running answers may go on after SIGTERM."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str) or info.field_name is None:
            return value
        field = cls.model_fields[info.field_name]
        variable, rule, default = variable_of(field), rule_of(field), str(field.default)
        text = _unquoted(value)
        try:
            return _parse(rule, text or default)
        except ValueError as error:
            said = f"{variable}={value!r} must be {rule.allowed}"
            if text in {"", default} or variable.startswith("SPECD_"):
                raise BadSetting(said) from error
            log.warning("%s; using the default %s", said, default)
            return _parse(rule, default)


def set_without_effect() -> dict[str, str]:
    """Variables of Ollama's that are set and change nothing here, each with the reason."""
    return {name: why for name, why in NO_EFFECT.items() if _unquoted(os.environ.get(name, ""))}


def unknown_variables() -> dict[str, str]:
    """SPECD_* that are set and that nobody reads, each with the setting it may stand for, or ""."""
    known = [variable_of(field) for field in Settings.model_fields.values()]
    return {
        name: next(iter(get_close_matches(name, known, n=1)), "")
        for name in os.environ
        if name.startswith("SPECD_") and name not in {*known, *OF_INSTALLER}
    }


def _unquoted(value: str) -> str:
    return value.strip().strip("\"'")


def _parse(rule: Rule, text: str) -> object:
    return rule.parse(text) if text else rule.unset()


def variable_of(field: FieldInfo) -> str:
    assert isinstance(field.validation_alias, str)
    return field.validation_alias


def rule_of(field: FieldInfo) -> Rule:
    return next(item for item in field.metadata if isinstance(item, Rule))
