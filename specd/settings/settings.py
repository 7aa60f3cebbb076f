"""Every setting of specd, declared once.  Nothing else reads the environment, but for two variables
that daemon_address.py reads by the same rules.

OLLAMA_* follow Ollama's own parse rules (envconfig): a value that cannot be read is a warning and
the default.  SPECD_* are ours: a value that cannot be used is an error.  `docs/settings.md` and
`configs/specd.env` are generated from the declarations below.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from specd.daemon_address import DEFAULT_HOST, HOST_VARIABLE, KEYS_VARIABLE, strip_quotes
from specd.errors import BadSetting
from specd.ignored_variables import IGNORED_VARIABLES, INSTALL_VARIABLES
from specd.settings.rules import (
    AutoFlagSetting,
    ConverterSetting,
    CountSetting,
    DebugSetting,
    DeviceSetting,
    FileSetting,
    FlagSetting,
    FolderSetting,
    GraceSetting,
    HostSetting,
    KeepAliveSetting,
    KeysSetting,
    KvCacheTypeSetting,
    ListSetting,
    LoadTimeoutSetting,
    LogFormatSetting,
    ParseRule,
    PathSetting,
    StateSetting,
    StrictFlagSetting,
    ThresholdSetting,
    UintSetting,
)

log = logging.getLogger(__name__)


def _setting(variable: str, default: str, description: str, *, live: bool = False) -> Any:
    """Declare a setting; `default` is what a user would write, empty for none.

    live: SIGHUP changes it in a running daemon; the others wait for the next start.
    """
    return Field(
        default=default,
        validate_default=True,
        validation_alias=variable,
        description=description,
        json_schema_extra={"live": live},
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
        HOST_VARIABLE,
        DEFAULT_HOST,
        "Where the daemon listens and where the commands look for it. `:11434` is all interfaces.",
    )
    models: PathSetting = _setting(
        "OLLAMA_MODELS", "~/.ollama/models", "The model store, shared with Ollama."
    )
    keep_alive_s: KeepAliveSetting = _setting(
        "OLLAMA_KEEP_ALIVE",
        "5m",
        "How long a model stays loaded after its last request.",
        live=True,
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
        "OLLAMA_MAX_QUEUE",
        "512",
        "Requests that may wait for a load; more are answered 503.",
        live=True,
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
    gpu_overhead_bytes: UintSetting = _setting(
        "OLLAMA_GPU_OVERHEAD", "0", "Bytes of every GPU that are left alone."
    )
    sched_spread: FlagSetting = _setting(
        "OLLAMA_SCHED_SPREAD", "0", "Spread every model over all GPUs, though one could hold it."
    )
    igpu: AutoFlagSetting = _setting(
        "OLLAMA_IGPU_ENABLE",
        "",
        "Use a GPU that shares the main memory; unset uses it where there is no other.",
    )
    go_template: AutoFlagSetting = _setting(
        "OLLAMA_GO_TEMPLATE",
        "",
        "Whether a model's Go template wins over its GGUF's Jinja template; unset lets the better"
        " one win.",
    )
    debug: DebugSetting = _setting("OLLAMA_DEBUG", "0", "How much is logged.", live=True)
    origins: ListSetting = _setting(
        "OLLAMA_ORIGINS",
        "",
        "Browser origins that may call the API beside the local ones; `*` in one is any text.",
        live=True,
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
        "OLLAMA_SPECULATIVE_DECODE", "1", "Speculative decoding, for all models.", live=True
    )
    draft_device: DeviceSetting = _setting(
        "SPECD_DRAFT_DEVICE",
        "auto",
        "Where drafters lie; auto is beside their targets, and never on the CPU when these are on a"
        " GPU.",
    )
    auto_pull_drafts: FlagSetting = _setting(
        "SPECD_AUTO_PULL_DRAFTS",
        "0",
        "Pull the drafter that a rule names for a model that is loaded without one, or with one"
        " from the shelf; it drafts from the next load on.",
        live=True,
    )
    mlock: FlagSetting = _setting(
        "SPECD_MLOCK",
        "0",
        "Keep weights in main memory from being swapped out; needs `LimitMEMLOCK`.",
    )
    prompt_lookup: FlagSetting = _setting(
        "SPECD_PROMPT_LOOKUP",
        "1",
        "Draft what followed the same tokens earlier in prompt or answer, where that pays.",
    )
    exact: FlagSetting = _setting(
        "SPECD_EXACT",
        "0",
        "Make the text for a seed the same with drafts and without, alone and beside other"
        " requests, for a prompt read anew and one found in the cache. A check at every load finds"
        " what that takes on this machine, at times drafts: the price is in `docs/speculation.md`;"
        " `specd ps` says what holds without it.",
    )
    pairs_file: FileSetting = _setting(
        "SPECD_PAIRS",
        "",
        "A file of your own pairs (target and drafter), read before the registry; unset is"
        " `$XDG_CONFIG_HOME/specd/pairs.toml`, else `~/.config/specd/pairs.toml`, where it exists."
        " One that is named here must be there when the daemon starts; `specd pairs add` makes it.",
    )
    state_dir: StateSetting = _setting(
        "SPECD_STATE_DIR",
        "",
        "Where what was learned of the pairs is kept; unset is systemd's `$STATE_DIRECTORY`, else"
        " `$XDG_STATE_HOME/specd`, else `~/.local/state/specd`.",
    )
    converter_dir: ConverterSetting = _setting(
        "SPECD_CONVERTER_DIR",
        "",
        "Folder of the safetensors converter (PyTorch, some gigabytes), which"
        " `specd create --prepare-converter` installs; unset is `converter` in systemd's"
        " `$STATE_DIRECTORY`, else"
        " `$XDG_CACHE_HOME/specd/converter`, else `~/.cache/specd/converter`.",
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
    acceptance_threshold: ThresholdSetting = _setting(
        "SPECD_ACCEPTANCE_THRESHOLD",
        "auto",
        "Accepted ÷ drafted below which a request stops drafting, even where drafts save time."
        " `auto` sets no such limit: drafts are judged by the time they are expected to save."
        " Answers and `specd ps` then show the acceptance at which drafting breaks even here.",
    )
    shutdown_grace_s: GraceSetting = _setting(
        "SPECD_SHUTDOWN_GRACE", "10s", "How long running answers may go on after SIGTERM."
    )
    client_timeout_s: LoadTimeoutSetting = _setting(
        "SPECD_CLIENT_TIMEOUT",
        "5m",
        "How long a client may keep the daemon waiting before its connection is closed: for a"
        " request, for the rest of one, or by taking nothing of its answer.",
    )
    engine_timeout_s: LoadTimeoutSetting = _setting(
        "SPECD_ENGINE_TIMEOUT",
        "5m",
        "How long an engine that owes an answer may make no step before it is ended; its answers"
        " end with an error, and the next request has a new engine.",
    )
    api_keys: KeysSetting = _setting(
        KEYS_VARIABLE,
        "",
        "Keys of which a client must send one (`Authorization: Bearer ...`, or `x-api-key`);"
        " unset asks for none.",
        live=True,
    )
    log_format: LogFormatSetting = _setting(
        "SPECD_LOG_FORMAT", "text", "How the daemon's lines look: for people, or as JSON."
    )
    env_file: FileSetting = _setting(
        "SPECD_ENV_FILE",
        "/etc/specd/specd.env",
        "What SIGHUP (`systemctl reload specd`) reads again, where it exists: the file of"
        " settings with which the service was started. What it no longer sets stays until the"
        " next start.",
    )

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Settings:
        """What `Settings()` would be in an environment of these variables.  Raises BadSetting."""
        names = [variable_of(field) for field in cls.model_fields.values()]
        texts: dict[str, Any] = {name: variables.get(name, "") for name in names}
        return cls(**texts)

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str) or info.field_name is None:
            return value
        field = cls.model_fields[info.field_name]
        variable, rule, default = variable_of(field), rule_of(field), str(field.default)
        text = strip_quotes(value)
        try:
            return _parse(rule, text or default)
        except ValueError as error:
            given = variable if rule.is_secret else f"{variable}={value!r}"
            said = f"{given} must be {rule.allowed}"
            if text in {"", default} or variable.startswith("SPECD_"):
                raise BadSetting(said) from (None if rule.is_secret else error)
            log.warning("%s; using the default %s", said, default)
            return _parse(rule, default)


def find_ineffective() -> dict[str, str]:
    """Variables of Ollama's that are set and change nothing here, each with the reason."""
    return {
        name: why
        for name, why in IGNORED_VARIABLES.items()
        if strip_quotes(os.environ.get(name, ""))
    }


def unknown_variables(environment: Iterable[str] | None = None) -> dict[str, str]:
    """What is set and nobody reads, each with the setting it may stand for, or "".

    environment: names; None is this process's own.
    """
    known = [variable_of(field) for field in Settings.model_fields.values()]
    return {
        name: next(iter(get_close_matches(name, known, n=1)), "")
        for name in (os.environ if environment is None else environment)
        if name.startswith(("SPECD_", "OLLAMA_"))
        and name not in {*known, *IGNORED_VARIABLES, *INSTALL_VARIABLES}
    }


def _parse(rule: ParseRule, text: str) -> object:
    return rule.parse(text) if text else rule.unset()


def variable_of(field: FieldInfo) -> str:
    assert isinstance(field.validation_alias, str)
    return field.validation_alias


def is_live(field: FieldInfo) -> bool:
    """Whether SIGHUP changes it in a running daemon."""
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra["live"] is True


def rule_of(field: FieldInfo) -> ParseRule:
    return next(item for item in field.metadata if isinstance(item, ParseRule))
