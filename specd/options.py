"""Ollama's `options`: names, types, defaults and precedence.

One declaration per option; types, defaults and error texts are those of the contract (Ollama's
`api.Options`), with llama-server's spelling `speculative.n_max` understood as well.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Final, get_args, get_origin, get_type_hints

from specd import core
from specd.errors import InvalidOption, InvalidRequest

log = logging.getLogger(__name__)

_INT64_MAX: Final = 2**63 - 1
#: Every token of an answer is looked at for each stop text, between two steps of all answers.
MAX_STOPS: Final = 1024
MAX_STOP_CHARACTERS: Final = 1024
#: Of what nobody knows so many are named in the log, and so much of each name.
_MAX_NAMED: Final = 5
_MAX_NAME: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a request runs with, after defaults, the Modelfile's PARAMETERs and its own options.

    draft_num_predict: None lets the controller decide, 0 is plain decoding, n caps the draft
    length.  Unlike Ollama's it is no runner option: changing it reloads nothing.
    num_ctx: None is automatic.  0 is automatic for a prompt, and no room at all for a vector.
    seed: −1 asks for a random one.  num_predict: < 0 is without limit.
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
    def merge(cls, *maps: Mapping[str, object]) -> Options:
        """Defaults overlaid by each map in turn: the Modelfile's parameters, then the request's.

        null is skipped, an unknown name is ignored with a warning.  Raises InvalidOption with
        Ollama's own text for a value of the wrong type.
        """
        merged: dict[str, object] = {}
        for options in maps:
            merged |= _read(options)
        if isinstance(n := merged.get("draft_num_predict"), int):
            merged["draft_num_predict"] = max(0, n)
        return replace(cls(), **merged)  # type: ignore[arg-type]  # _read keeps to each field's type

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


def _read(options: Mapping[str, object]) -> dict[str, object]:
    """The known options of one map, typed; a name of Ollama's wins over its alias."""
    read: dict[str, object] = {}
    unknown: list[str] = []
    for key in sorted(options, key=lambda key: key not in _ALIASES):
        name, value = _ALIASES.get(key, key), options[key]
        if name not in TYPES:
            unknown.append(key)
        elif value is not None:
            read[name] = _READERS[TYPES[name]](key, value)
    for key in unknown[:_MAX_NAMED]:
        log.warning("ignoring the unknown option %r", key[:_MAX_NAME])
    if len(unknown) > _MAX_NAMED:
        log.warning("ignoring %d more unknown options", len(unknown) - _MAX_NAMED)
    return read


def _integer(key: str, value: object) -> int:
    """A fraction is cut off, as Go does; what 64 bits cannot hold becomes their end."""
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
        raise InvalidRequest(f'option "{key}" has {len(value)} texts, and may have {MAX_STOPS}')
    if max(map(len, value), default=0) > MAX_STOP_CHARACTERS:
        raise InvalidRequest(
            f'option "{key}" has a text of more than {MAX_STOP_CHARACTERS} characters'
        )
    return tuple(value)


def _base_type(hint: object) -> type:
    """The type of a field: without its None, and without what a tuple is of."""
    [plain] = set(get_args(hint) if isinstance(hint, UnionType) else (hint,)) - {NoneType}
    found = get_origin(plain) or plain
    assert isinstance(found, type)
    return found


_READERS: Final[Mapping[type, Callable[[str, object], object]]] = {
    int: _integer,
    float: _float32,
    bool: _boolean,
    tuple: _strings,
}
#: Every option by its name: int, float, bool, or tuple for a list of texts.
TYPES: Final[Mapping[str, type]] = {
    name: _base_type(hint) for name, hint in get_type_hints(Options).items()
}
#: Ollama's own of old: a Modelfile may still have them, and they change nothing.
DEPRECATED: Final = frozenset(
    (
        *("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "numa", "num_gqa"),
    )
)
