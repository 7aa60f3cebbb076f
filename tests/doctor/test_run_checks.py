"""Which checks run, and whether in this shell or in the service's sandbox."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from specd.cli.doctor import _print
from specd.doctor import Finding, Level, check_all, check_local
from specd.doctor.finding import absent, ok, warning
from specd.doctor.service import HeldSocket

INSTALLED = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "enabled",
    "NRestarts": "0",
}
INSIDE = ok("inside", "as the service sees it")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("SPECD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setattr("specd.doctor.run_checks.probe", lambda: ())


def examined(
    unit: Mapping[str, str], *, is_root: bool, socket: Mapping[str, str] | None = None
) -> list[Finding]:
    """Return the findings; the sandbox's are INSIDE and the held socket."""
    units = {"specd.service": unit, "ollama.service": {}, "specd.socket": socket or {}}

    def check_in_sandbox(held_socket: HeldSocket | None) -> list[Finding]:
        return [INSIDE, *([ok("held", str(held_socket))] if held_socket else [])]

    return list(
        check_all(
            show=units.__getitem__,
            check_in_sandbox=check_in_sandbox,
            can_enter_sandbox=lambda: is_root,
        )
    )


def test_an_installed_service_is_checked_in_its_sandbox() -> None:
    assert [f.topic for f in examined(INSTALLED, is_root=True)] == ["service", "inside"]


def test_the_held_socket_is_passed_to_the_checks() -> None:
    waits = INSTALLED | {"ActiveState": "inactive"}
    socket = {"ActiveState": "active", "UnitFileState": "enabled", "Listen": "[::]:9 (Stream)"}
    *_, told = examined(waits, is_root=True, socket=socket)
    assert told.words == str(HeldSocket(("[::]:9",), is_served=False))
    found = examined(waits, is_root=False, socket=socket)
    assert any("specd.socket holds http://[::]:9" in f.words for f in found)


def test_without_root_the_checks_run_as_this_user() -> None:
    found = examined(INSTALLED, is_root=False)
    assert INSIDE not in found
    assert any("sudo specd doctor" in f.words for f in found)
    assert {"versions", "store", "port"} <= {f.topic for f in found}


def test_without_a_service_the_checks_run_in_this_shell() -> None:
    found = examined({}, is_root=True)
    assert INSIDE not in found
    assert {"versions", "llama.cpp", "port", "state", "store", "drafters"} <= {
        f.topic for f in found
    }


def test_a_setting_that_stops_the_daemon_is_a_problem_and_shows_no_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPECD_API_KEYS", "short")
    *_, last = check_local()
    assert last.level is Level.PROBLEM
    assert last.words.startswith("SPECD_API_KEYS must be")
    assert "short" not in last.words.replace("shorter", "")


def test_broken_pairs_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "pairs.toml"
    pairs.write_text("[[pair]]\ntarget = 1\n")
    monkeypatch.setenv("SPECD_PAIRS", str(pairs))
    [problem] = [f for f in check_local() if f.level is Level.PROBLEM]
    assert problem.topic == "pairs"
    assert str(pairs) in problem.words


@pytest.mark.parametrize(
    "name,value,words,remedy",
    [
        ("SPECD_API_KEY", "0123456789abcdef", "is not a setting", "did you mean SPECD_API_KEYS?"),
        ("OLLAMA_KEEPALIVE", "3", "is not a setting", "did you mean OLLAMA_KEEP_ALIVE?"),
        ("OLLAMA_KEEP_ALIVE", "banana", "using the default 5m", "docs/settings.md"),
    ],
)
def test_a_setting_without_effect_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str, remedy: str
) -> None:
    monkeypatch.setenv(name, value)
    found = [f for f in check_local() if f.topic == "settings"]
    assert [f.level for f in found] == [Level.WARNING]
    assert words in found[0].words
    assert remedy in found[0].remedy


def test_an_absent_thing_gets_no_tick() -> None:
    out = io.StringIO()
    found = [ok("driver", "is there"), absent("gpu", "is not"), warning("a", "b", "c")]
    _print(Console(file=out, width=80), found)
    lines = out.getvalue().splitlines()
    assert lines[:3] == ["✓ driver: is there", "- gpu: is not", "! a: b"]
    assert lines[-1] == "no problems, 1 warning"
