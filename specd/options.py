"""Ollama's `options`: defaults, precedence, and a parser of untyped values.

Types, defaults and error texts are those of Ollama's `api.Options`;
llama-server's name `speculative.n_max` is read too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_origin, get_type_hints

from specd import core
from specd.errors import InvalidOption, InvalidRequest

log = logging.getLogger(__name__)

_INT64_MAX: Final = 2**63 - 1
#: Limits: each token of an answer is searched for every stop text, and all answers wait meanwhile.
MAX_STOPS: Final = 1024
MAX_STOP_CHARACTERS: Final = 1024
#: How many unknown options the log names, and how many characters of each.
_MAX_NAMED: Final = 5
_MAX_NAME: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one request: defaults, then the Modelfile's PARAMETERs, then its own.

    draft_num_predict: most tokens per draft; None lets the controller decide, 0 disables drafting.
    A change does not reload the model, unlike in Ollama.
    num_ctx: tokens; None is automatic.  0 is automatic for a prompt, and no context for embeddings.
    seed: −1 for a random one.  num_predict: tokens; below 0 there is no limit.
    """

    num_ctx: int | None = None
    num_batch: int = 512
    num_gpu: int = -1
    main_gpu: int | None = None
    use_mmap: bool | None = None
    num_thread: int = 0
    draft_num_predict: int | None = None
    num_keep: int = 4
    seed: int = -1
    num_predict: int = -1
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    temperature: float = 0.8
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()

    @classmethod
    def merge(cls, *values: core.OptionValues) -> Options:
        """Return the defaults overridden by each argument in turn: Modelfile, then request."""
        merged: dict[str, Any] = {}
        for one in values:
            merged |= one
        return cls(**merged)

    def sampling(self, random_seed: Callable[[], int]) -> core.SamplingParams:
        return core.SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=random_seed() if self.seed == -1 else self.seed,
        )


_ALIASES: Final = {"speculative.n_max": "draft_num_predict"}


def parse(options: Mapping[str, object]) -> core.OptionValues:
    """Return the known options with their types; Ollama's name wins over its alias.

    null is skipped; an unknown name is ignored with a warning.
    Raises InvalidOption with Ollama's own text for a value of the wrong type, and InvalidRequest
    for too many or too long stop texts.
    """
    read: dict[str, Any] = {}
    unknown: list[str] = []
    for key in sorted(options, key=lambda key: key not in _ALIASES):
        name, value = _ALIASES.get(key, key), options[key]
        if name not in TYPES:
            unknown.append(key)
        elif value is not None:
            read[name] = _READERS[TYPES[name]](key, value)
    if "draft_num_predict" in read:
        read["draft_num_predict"] = max(0, read["draft_num_predict"])
    for key in unknown[:_MAX_NAMED]:
        log.warning("ignoring the unknown option %r", key[:_MAX_NAME])
    if len(unknown) > _MAX_NAMED:
        log.warning("ignoring %d more unknown options", len(unknown) - _MAX_NAMED)
    return cast("core.OptionValues", read)


def _integer(key: str, value: object) -> int:
    """Truncate a fraction as Go does, and clamp to 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124
        raise InvalidOption(f'option "{key}" must be of type integer')
    return math.trunc(max(-_INT64_MAX - 1, min(value, _INT64_MAX)))


def _float32(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f'option "{key}" must be of type float32')
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidOption(f'option "{key}" must be of type float32')
    return number


def _boolean(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f'option "{key}" must be of type boolean')
    return value


def _strings(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidOption(f'option "{key}" must be of type array')
    if not all(isinstance(item, str) for item in value):
        raise InvalidOption(f'option "{key}" must be of an array of strings')
    if len(value) > MAX_STOPS:
        raise InvalidRequest(f'option "{key}" has {len(value)} texts; at most {MAX_STOPS} allowed')
    if max(map(len, value), default=0) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f'option "{key}" has a text longer than {MAX_STOP_CHARACTERS} characters'
        )
    return tuple(value)


_READERS: Final[Mapping[type, Callable[[str, object], object]]] = {
    int: _integer,
    float: _float32,
    bool: _boolean,
    tuple: _strings,
}
#: Option name → type: int, float, bool, or tuple for a list of texts.
TYPES: Final[Mapping[str, type]] = {
    name: get_origin(hint) or hint for name, hint in get_type_hints(core.OptionValues).items()
}
#: Former options of Ollama: a Modelfile may still set them, without effect.
DEPRECATED: Final = frozenset(
    (
        *("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "numa", "num_gqa"),
    )
)
