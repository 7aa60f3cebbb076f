"""Ollama's options: types, precedence and error texts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import InvalidOption, InvalidRequest
from specd.options import MAX_STOP_CHARACTERS, MAX_STOPS, TYPES, Options, parse

ENTRIES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text(), max_size=3)
)
NAMES = st.sampled_from([field.name for field in dataclasses.fields(Options)]) | st.text()


def merged(*maps: Mapping[str, object]) -> Options:
    return Options.merge(*map(parse, maps))


def test_every_option_has_a_type_and_a_default() -> None:
    assert set(TYPES) == {field.name for field in dataclasses.fields(Options)}


@pytest.mark.contract("options.defaults")
def test_no_options_give_ollamas_defaults() -> None:
    options = Options.merge()
    assert options == Options()
    assert (options.temperature, options.top_k, options.top_p) == (0.8, 40, 0.9)
    assert (options.repeat_penalty, options.seed, options.num_predict) == (1.0, -1, -1)
    assert options.draft_num_predict is None


@pytest.mark.contract("options.precedence", "options.truncated")
def test_the_request_wins_over_the_modelfile_and_null_over_nothing() -> None:
    modelfile = {"temperature": 0.5, "top_k": 10, "stop": ["x"]}
    request = {"temperature": 0, "top_k": None}
    options = merged(modelfile, request)
    assert (options.temperature, options.top_k, options.stop) == (0.0, 10, ("x",))


@pytest.mark.contract("options.types", "options.stop")
@pytest.mark.parametrize(
    "name,value,message",
    [
        ("temperature", "hot", 'option "temperature" must be of type float32'),
        ("temperature", True, 'option "temperature" must be of type float32'),
        ("temperature", math.nan, 'option "temperature" must be of type float32'),
        ("temperature", 10**400, 'option "temperature" must be of type float32'),
        ("top_k", "40", 'option "top_k" must be of type integer'),
        ("top_k", False, 'option "top_k" must be of type integer'),
        ("top_k", math.nan, 'option "top_k" must be of type integer'),
        ("main_gpu", [], 'option "main_gpu" must be of type integer'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", "\n", 'option "stop" must be of type array'),
        ("stop", ["a", 1], 'option "stop" must be of an array of strings'),
    ],
)
def test_a_wrong_type_is_refused_with_ollamas_text(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parse({name: value})
    assert str(refused.value) == message


@pytest.mark.contract("options.truncated")
def test_fractions_are_cut_off_for_integers() -> None:
    options = merged({"top_k": 39.9, "seed": -7.9, "num_ctx": 4096.0})
    assert (options.top_k, options.seed, options.num_ctx) == (39, -7, 4096)


@pytest.mark.contract("options.unknown")
def test_an_unknown_option_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert merged({"mirostat": 2}) == Options()
    assert "mirostat" in caplog.text


def test_llama_servers_spelling_caps_the_draft() -> None:
    assert merged({"speculative.n_max": 3}).draft_num_predict == 3
    both = {"draft_num_predict": 5, "speculative.n_max": 3}
    assert merged(both).draft_num_predict == 5
    assert merged(dict(reversed(both.items()))).draft_num_predict == 5
    assert merged({"draft_num_predict": 5}, {"speculative.n_max": 0}).draft_num_predict == 0


def test_a_negative_draft_length_is_plain_decoding() -> None:
    assert merged({"draft_num_predict": -1}).draft_num_predict == 0


@pytest.mark.contract("options.seed")
def test_minus_one_draws_a_seed_and_zero_is_a_seed() -> None:
    assert merged({"seed": -1}).sampling(lambda: 77).seed == 77
    assert merged({"seed": 0}).sampling(lambda: 77).seed == 0


@pytest.mark.contract("options.sampling")
def test_sampling_carries_every_filter() -> None:
    values = {"temperature": 0.1, "top_k": 1, "top_p": 0.2, "min_p": 0.3, "typical_p": 0.4}
    penalties = {
        "repeat_last_n": 5,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.7,
    }
    params = merged(values, penalties).sampling(lambda: 0)
    assert dataclasses.asdict(params) == {**values, **penalties, "seed": 0, "chain": None}


@given(st.dictionaries(NAMES, ENTRIES, max_size=6))
def test_any_map_is_refused_or_gives_options_within_64_bits(
    entries: dict[str, object],
) -> None:
    try:
        options = merged(entries)
    except InvalidOption:
        return
    for value in dataclasses.asdict(options).values():
        if isinstance(value, int):
            assert -(2**63) <= value < 2**63
    json.dumps(dataclasses.asdict(options), allow_nan=False)


def test_few_unknown_options_are_named_and_names_are_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse({f"{number}{'x' * 500}": 1 for number in range(1000)})
    assert len(caplog.records) == 6
    assert "ignoring 995 more unknown options" in caplog.text
    assert len(caplog.text) < 1000


@pytest.mark.parametrize(
    "stop, said",
    [
        (["x"] * (MAX_STOPS + 1), 'option "stop" has 1025 texts; at most 1024 allowed'),
        (["x" * (MAX_STOP_CHARACTERS + 1)], "a text longer than 1024 characters"),
    ],
)
def test_stop_texts_have_bounds(stop: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse({"stop": stop})
    most = [text[:MAX_STOP_CHARACTERS] for text in stop[:MAX_STOPS]]
    assert merged({"stop": most}).stop == tuple(most)
