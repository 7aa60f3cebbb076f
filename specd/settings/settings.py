"""The declarations of all settings.

Only daemon_address.py reads the environment too: two of the variables, by the same rules.
OLLAMA_* follow Ollama's parse rules (envconfig): an invalid value is a warning, and the default
applies.  SPECD_*: an invalid value is an error.  `docs/settings.md` and `configs/specd.env` are
generated from these declarations.
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
    """Declare a setting.

    default: as a user would write it; empty for none.
    live: whether SIGHUP changes it in a running daemon; other settings need a restart.
    """
    return Field(
        default=default,
        validate_default=True,
        validation_alias=variable,
        description=description,
        json_schema_extra={"live": live},
    )


class Settings(BaseSettings):
    """The settings of one process.

    `Settings()` reads the environment; keyword arguments (typed values) override it.  Raises
    BadSetting, which names the variable, its value and what is allowed.
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
        "Address that the daemon listens on and the commands connect to. `:11434` is all"
        " interfaces.",
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
        "How long a load or a quantization may make no progress before it is stopped.",
    )
    num_parallel: CountSetting = _setting(
        "OLLAMA_NUM_PARALLEL", "1", "Requests that one model answers in parallel."
    )
    max_loaded_models: UintSetting = _setting(
        "OLLAMA_MAX_LOADED_MODELS",
        "0",
        "Models that may be loaded at the same time; 0 means three per GPU, or three without a"
        " GPU.",
    )
    max_queue: UintSetting = _setting(
        "OLLAMA_MAX_QUEUE",
        "512",
        "Requests that may wait for a load; further ones are refused with status 503.",
        live=True,
    )
    context_length: UintSetting = _setting(
        "OLLAMA_CONTEXT_LENGTH",
        "0",
        "Context of a request in tokens; 0 chooses it by the GPU's memory.",
    )
    flash_attention: AutoFlagSetting = _setting(
        "OLLAMA_FLASH_ATTENTION", "", "Flash attention; unset uses it if the device supports it."
    )
    kv_cache_type: KvCacheTypeSetting = _setting(
        "OLLAMA_KV_CACHE_TYPE", "f16", "Number format of the KV cache."
    )
    gpu_overhead_bytes: UintSetting = _setting(
        "OLLAMA_GPU_OVERHEAD", "0", "Bytes to leave free on every GPU."
    )
    sched_spread: FlagSetting = _setting(
        "OLLAMA_SCHED_SPREAD", "0", "Spread every model over all GPUs, even if it fits on one."
    )
    igpu: AutoFlagSetting = _setting(
        "OLLAMA_IGPU_ENABLE",
        "",
        "Use an integrated GPU, which shares the main memory; unset uses it if there is no other"
        " GPU.",
    )
    go_template: AutoFlagSetting = _setting(
        "OLLAMA_GO_TEMPLATE",
        "",
        "Prefer a model's Go template to the Jinja template of its GGUF; unset chooses the better"
        " one.",
    )
    debug: DebugSetting = _setting("OLLAMA_DEBUG", "0", "Log level.", live=True)
    origins: ListSetting = _setting(
        "OLLAMA_ORIGINS",
        "",
        "Browser origins that may call the API, in addition to the local ones; `*` stands for any"
        " text.",
        live=True,
    )
    noprune: FlagSetting = _setting(
        "OLLAMA_NOPRUNE", "0", "Keep blobs that no model uses any more."
    )
    nohistory: FlagSetting = _setting(
        "OLLAMA_NOHISTORY",
        "0",
        "Do not store the prompts typed in `specd run`. Otherwise they are stored in `prompts` in"
        " `SPECD_STATE_DIR`, readable only by their owner.",
    )
    speculative_decode: FlagSetting = _setting(
        "OLLAMA_SPECULATIVE_DECODE", "1", "Speculative decoding, for all models.", live=True
    )
    draft_device: DeviceSetting = _setting(
        "SPECD_DRAFT_DEVICE",
        "auto",
        "Device of the drafters; auto is the device of the target, and never the CPU for a target"
        " on a GPU.",
    )
    auto_pull_drafts: FlagSetting = _setting(
        "SPECD_AUTO_PULL_DRAFTS",
        "0",
        "Pull the drafter that a rule names, if a model is loaded without one or with another one"
        " from the local store. The next load uses it.",
        live=True,
    )
    mlock: FlagSetting = _setting(
        "SPECD_MLOCK",
        "0",
        "Lock weights in main memory, so that they are not swapped out; needs `LimitMEMLOCK`.",
    )
    prompt_lookup: FlagSetting = _setting(
        "SPECD_PROMPT_LOOKUP",
        "1",
        "Draft tokens by prompt lookup: what followed the same tokens earlier in the prompt or"
        " answer, where that saves time.",
    )
    exact: FlagSetting = _setting(
        "SPECD_EXACT",
        "0",
        "Produce the same text for a seed with and without drafts, with and without parallel"
        " requests, and with and without a cached prompt. A check at every load finds what this"
        " requires; it may disable drafting. `docs/speculation.md` shows the cost, and `specd ps`"
        " what holds without this setting.",
    )
    pairs_file: FileSetting = _setting(
        "SPECD_PAIRS",
        "",
        "File of your own pairs (target and drafter), which take precedence over the packaged ones;"
        " unset is `$XDG_CONFIG_HOME/specd/pairs.toml`, else `~/.config/specd/pairs.toml`, if it"
        " exists. A file named here must exist when the daemon starts; `specd pairs add` creates"
        " it.",
    )
    state_dir: StateSetting = _setting(
        "SPECD_STATE_DIR",
        "",
        "Folder of what specd remembers: statistics of pairs, measured memory, compared"
        " vocabularies, and the prompts typed in `specd run`; unset is systemd's"
        " `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/specd`, else `~/.local/state/specd`.",
    )
    converter_dir: ConverterSetting = _setting(
        "SPECD_CONVERTER_DIR",
        "",
        "Folder of the safetensors converter (PyTorch, several gigabytes), which"
        " `specd create --prepare-converter` installs; unset is `converter` in systemd's"
        " `$STATE_DIRECTORY`, else"
        " `$XDG_CACHE_HOME/specd/converter`, else `~/.cache/specd/converter`.",
    )
    trace_dir: FolderSetting = _setting(
        "SPECD_TRACE_DIR",
        "",
        "Folder in which each engine records the measurements and decisions of its controller, for"
        " `specd trace`: at most 64 MiB each, without text or tokens; unset records nothing.",
    )
    demo: StrictFlagSetting = _setting(
        "SPECD_DEMO",
        "",
        "List the model `specd-demo`; unset lists it only while the store is empty.",
    )
    acceptance_threshold: ThresholdSetting = _setting(
        "SPECD_ACCEPTANCE_THRESHOLD",
        "auto",
        "Acceptance rate (accepted ÷ drafted) below which a request stops drafting, even if drafts"
        " save time. `auto` sets no such limit: a draft is made if it is expected to save time."
        " Answers and `specd ps` then show the acceptance at which drafting breaks even here.",
    )
    shutdown_grace_s: GraceSetting = _setting(
        "SPECD_SHUTDOWN_GRACE", "10s", "How long running answers may continue after SIGTERM."
    )
    client_timeout_s: LoadTimeoutSetting = _setting(
        "SPECD_CLIENT_TIMEOUT",
        "5m",
        "How long a connection may stay idle before it is closed: without a request, within a"
        " request, or while the client reads nothing of its answer.",
    )
    engine_timeout_s: LoadTimeoutSetting = _setting(
        "SPECD_ENGINE_TIMEOUT",
        "5m",
        "How long a busy engine may make no step before it is killed. Its answers end with an"
        " error, and the next request starts a new engine.",
    )
    api_keys: KeysSetting = _setting(
        KEYS_VARIABLE,
        "",
        "API keys. Clients must send one of them (`Authorization: Bearer ...`, or `x-api-key`);"
        " unset requires none.",
        live=True,
    )
    log_format: LogFormatSetting = _setting(
        "SPECD_LOG_FORMAT", "text", "Format of the daemon's log lines."
    )
    env_file: FileSetting = _setting(
        "SPECD_ENV_FILE",
        "/etc/specd/specd.env",
        "Environment file of the service, which SIGHUP (`systemctl reload specd`) reads again if it"
        " exists. A variable removed from it keeps its value until the next start.",
    )

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Settings:
        """Return the settings for these environment variables.  Raises BadSetting."""
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
            message = f"{given} must be {rule.allowed}"
            if text in {"", default} or variable.startswith("SPECD_"):
                raise BadSetting(message) from (None if rule.is_secret else error)
            log.warning("%s; using the default %s", message, default)
            return _parse(rule, default)


def find_ineffective() -> dict[str, str]:
    """Return Ollama's variables that are set but have no effect, each with the reason."""
    return {
        name: why
        for name, why in IGNORED_VARIABLES.items()
        if strip_quotes(os.environ.get(name, ""))
    }


def unknown_variables(environment: Iterable[str] | None = None) -> dict[str, str]:
    """Return the variables that are set but unknown, each with a similar setting or "".

    environment: names of variables; None for this process's own.
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
    """Return whether SIGHUP changes the setting in a running daemon."""
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra["live"] is True


def rule_of(field: FieldInfo) -> ParseRule:
    return next(item for item in field.metadata if isinstance(item, ParseRule))
