"""Check how specd reads the environment: Ollama's rules for OLLAMA_*, errors for SPECD_*."""

from __future__ import annotations

import math
import pwd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import BadSetting
from specd.settings import HostAddress, Settings, parse_host


@pytest.mark.contract("env.keep-alive")
def test_an_empty_environment_gives_ollamas_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home-of-someone")
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert Settings() == Settings(
        host=HostAddress("http", "127.0.0.1", 11434),
        models=Path("/home-of-someone/.ollama/models"),
        keep_alive_s=300.0,
        load_timeout_s=300.0,
        num_parallel=1,
        max_loaded_models=0,
        max_queue=512,
        context_length=0,
        flash_attention=None,
        kv_cache_type="f16",
        debug=0,
        origins=(),
        speculative_decode=True,
        pairs_file=None,
        state_dir=Path("/home-of-someone/.local/state/specd"),
        trace_dir=None,
        demo=None,
        acceptance_threshold=None,
        shutdown_grace_s=10.0,
    )


@pytest.mark.contract("env.host")
@pytest.mark.parametrize(
    "text,address",
    [
        ("1.2.3.4", HostAddress("http", "1.2.3.4", 11434)),
        ("1.2.3.4:80", HostAddress("http", "1.2.3.4", 80)),
        (":1234", HostAddress("http", "", 1234)),
        ("example.com", HostAddress("http", "example.com", 11434)),
        ("example.com:", HostAddress("http", "example.com", 11434)),
        ("http://example.com", HostAddress("http", "example.com", 80)),
        ("https://example.com", HostAddress("https", "example.com", 443)),
        ("https://example.com:99/a/b/", HostAddress("https", "example.com", 99, "/a/b")),
        ("ollama.com", HostAddress("https", "ollama.com", 443)),
        ("::1", HostAddress("http", "::1", 11434)),
        ("[::1]", HostAddress("http", "::1", 11434)),
        ("[::1]:99", HostAddress("http", "::1", 99)),
        ("1.2.3.4:0", HostAddress("http", "1.2.3.4", 0)),
        ("1.2.3.4:66000", HostAddress("http", "1.2.3.4", 11434)),
        ("1.2.3.4:-1", HostAddress("http", "1.2.3.4", 11434)),
        ("https://1.2.3.4:x", HostAddress("https", "1.2.3.4", 443)),
    ],
)
def test_hosts_are_read_as_ollama_reads_them(text: str, address: HostAddress) -> None:
    assert parse_host(text) == address


@given(st.text())
def test_any_text_gives_a_host(text: str) -> None:
    assert 0 <= parse_host(text).port <= 65535


@pytest.mark.parametrize(
    "address,url",
    [
        (HostAddress("http", "", 1), "http://127.0.0.1:1"),
        (HostAddress("http", "0.0.0.0", 1), "http://127.0.0.1:1"),
        (HostAddress("http", "::", 1), "http://[::1]:1"),
        (HostAddress("https", "a.b", 443, "/x"), "https://a.b:443/x"),
    ],
)
def test_the_url_is_one_that_a_client_can_reach(address: HostAddress, url: str) -> None:
    assert address.url == url


@pytest.mark.contract(
    "env.quotes",
    "env.bools",
    "env.keep-alive",
    "env.numbers",
    "env.origins",
    "env.debug",
    "env.kv-cache",
    "env.flash-attention",
)
@pytest.mark.parametrize(
    "variable,text,attribute,value",
    [
        ("OLLAMA_HOST", ' "1.2.3.4:5" ', "host", HostAddress("http", "1.2.3.4", 5)),
        ("OLLAMA_MODELS", "'/srv/models'", "models", Path("/srv/models")),
        ("OLLAMA_KEEP_ALIVE", "1h", "keep_alive_s", 3600.0),
        ("OLLAMA_KEEP_ALIVE", "90", "keep_alive_s", 90.0),
        ("OLLAMA_KEEP_ALIVE", "0", "keep_alive_s", 0.0),
        ("OLLAMA_KEEP_ALIVE", "-1", "keep_alive_s", math.inf),
        ("OLLAMA_KEEP_ALIVE", "-2m", "keep_alive_s", math.inf),
        ("OLLAMA_LOAD_TIMEOUT", "0", "load_timeout_s", math.inf),
        ("OLLAMA_LOAD_TIMEOUT", "2m", "load_timeout_s", 120.0),
        ("OLLAMA_NUM_PARALLEL", "4", "num_parallel", 4),
        ("OLLAMA_NUM_PARALLEL", "0", "num_parallel", 1),
        ("OLLAMA_MAX_QUEUE", "", "max_queue", 512),
        ("OLLAMA_MAX_QUEUE", '""', "max_queue", 512),
        ("OLLAMA_FLASH_ATTENTION", "1", "flash_attention", True),
        ("OLLAMA_FLASH_ATTENTION", "false", "flash_attention", False),
        ("OLLAMA_FLASH_ATTENTION", "yes please", "flash_attention", True),
        ("OLLAMA_SPECULATIVE_DECODE", "0", "speculative_decode", False),
        ("OLLAMA_SPECULATIVE_DECODE", "F", "speculative_decode", False),
        ("OLLAMA_SPECULATIVE_DECODE", "off", "speculative_decode", True),
        ("OLLAMA_KV_CACHE_TYPE", "Q8_0", "kv_cache_type", "q8_0"),
        ("OLLAMA_DEBUG", "true", "debug", 1),
        ("OLLAMA_DEBUG", "2", "debug", 2),
        ("OLLAMA_DEBUG", "9", "debug", 2),
        ("OLLAMA_DEBUG", "loud", "debug", 0),
        ("OLLAMA_ORIGINS", "http://a, b", "origins", ("http://a", " b")),
        ("SPECD_DEMO", "1", "demo", True),
        ("SPECD_DEMO", "false", "demo", False),
        ("SPECD_ACCEPTANCE_THRESHOLD", "0.25", "acceptance_threshold", 0.25),
        ("SPECD_ACCEPTANCE_THRESHOLD", "0", "acceptance_threshold", 0.0),
        ("SPECD_ACCEPTANCE_THRESHOLD", "auto", "acceptance_threshold", None),
        ("SPECD_ACCEPTANCE_THRESHOLD", '""', "acceptance_threshold", None),
        ("SPECD_SHUTDOWN_GRACE", "1500ms", "shutdown_grace_s", 1.5),
    ],
)
def test_a_value_is_read_by_its_rule(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, attribute: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(Settings(), attribute) == value


@pytest.mark.contract("env.numbers", "env.keep-alive")
@pytest.mark.parametrize(
    "variable,text,attribute",
    [
        ("OLLAMA_KEEP_ALIVE", "soon", "keep_alive_s"),
        ("OLLAMA_MAX_QUEUE", "-1", "max_queue"),
        ("OLLAMA_MAX_QUEUE", "1_000", "max_queue"),
        ("OLLAMA_NUM_PARALLEL", "two", "num_parallel"),
        ("OLLAMA_CONTEXT_LENGTH", "99999999999999999999", "context_length"),
    ],
)
def test_a_bad_ollama_value_is_a_warning_and_the_default(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    text: str,
    attribute: str,
) -> None:
    default = getattr(Settings(), attribute)
    monkeypatch.setenv(variable, text)
    assert getattr(Settings(), attribute) == default
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{variable}={text!r} must be ")


@pytest.mark.parametrize(
    "variable,text,allowed",
    [
        ("SPECD_ACCEPTANCE_THRESHOLD", "1.2", "auto, or a number from 0 to 1"),
        ("SPECD_ACCEPTANCE_THRESHOLD", "nan", "auto, or a number from 0 to 1"),
        ("SPECD_ACCEPTANCE_THRESHOLD", "-0.1", "auto, or a number from 0 to 1"),
        ("SPECD_ACCEPTANCE_THRESHOLD", "none", "auto, or a number from 0 to 1"),
        ("SPECD_ACCEPTANCE_THRESHOLD", "half", "auto, or a number from 0 to 1"),
        ("SPECD_DEMO", "perhaps", "1 or 0"),
        ("SPECD_SHUTDOWN_GRACE", "-1s", "a duration"),
    ],
)
def test_an_invalid_specd_value_names_the_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, allowed: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(BadSetting) as caught:
        Settings()
    assert str(caught.value).startswith(f"{variable}={text!r} must be {allowed}")


def test_the_error_for_a_large_number_names_the_maximum(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OLLAMA_GPU_OVERHEAD", "99999999999999999999")
    assert Settings().gpu_overhead_bytes == 0
    assert "must be a whole number from 0 to 2^64−1" in caplog.messages[0]


def test_a_pairs_file_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "pairs.toml"
    monkeypatch.setenv("SPECD_PAIRS", str(file))
    assert Settings().pairs_file == file


def test_arguments_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "4")
    assert Settings(num_parallel=2).num_parallel == 2


@pytest.mark.parametrize(
    "variables,expected",
    [
        ({"SPECD_STATE_DIR": "/a", "STATE_DIRECTORY": "/b", "XDG_STATE_HOME": "/c"}, "/a"),
        ({"SPECD_STATE_DIR": "", "STATE_DIRECTORY": "/b:/d", "XDG_STATE_HOME": "/c"}, "/b"),
        ({"XDG_STATE_HOME": "/c"}, "/c/specd"),
        ({"XDG_STATE_HOME": "not/absolute"}, "/home-of-someone/.local/state/specd"),
    ],
)
def test_the_state_folder_follows_systemd_and_xdg(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for variable in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home-of-someone")
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    assert Settings().state_dir == Path(expected)


def no_such_user(_: int) -> None:
    raise KeyError


def test_a_user_without_a_home_has_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    assert Settings(models=Path("/m")).state_dir is None


def test_a_trace_folder_is_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home-of-someone")
    monkeypatch.setenv("SPECD_TRACE_DIR", "~/traces")
    assert Settings().trace_dir == Path("/home-of-someone/traces")
