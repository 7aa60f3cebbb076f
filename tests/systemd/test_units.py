"""The shipped unit files, checked by systemd's own tools; nothing is started."""

from __future__ import annotations

import configparser
import re
import shutil
from pathlib import Path

import pytest

from specd.settings import Settings
from tests.systemd import unit_security

UNITS = Path(__file__).parents[2] / "systemd"
analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here"
)


def read(name: str) -> configparser.RawConfigParser:
    """Parse a unit file; the last of several values of a key counts."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNITS / name, encoding="utf-8")
    return parser


@analyze
def test_systemd_verifies_the_units_without_a_warning() -> None:
    assert unit_security.complaints() == ""


@analyze
@pytest.mark.parametrize(
    "line,complaint",
    [
        ("[Service]\nWatchdogSecs=3", "WatchdogSecs"),
        ("[Service]\nSystemCallFilter=@system-servic", "system-servic"),
        ("[Unit]\nRequires=nothing-of-this-name.service", "nothing-of-this-name"),
    ],
)
def test_a_mistake_in_a_unit_is_detected(tmp_path: Path, line: str, complaint: str) -> None:
    for name in ("specd.service", "specd.socket"):
        shutil.copy(UNITS / name, tmp_path)
    with (tmp_path / "specd.service").open("a") as unit:
        unit.write(f"{line}\n")
    assert complaint in unit_security.complaints(tmp_path)


@analyze
def test_the_exposure_score_of_the_service_is_within_its_limit() -> None:
    assert unit_security.exposure() <= unit_security.MOST


@analyze
def test_a_weaker_sandbox_exceeds_the_limit_of_the_exposure_score(tmp_path: Path) -> None:
    text = (UNITS / "specd.service").read_text(encoding="utf-8")
    unit = tmp_path / "specd.service"
    unit.write_text(text.replace("CapabilityBoundingSet=\n", ""), encoding="utf-8")
    assert unit_security.exposure(unit) > unit_security.MOST


def test_the_socket_has_the_default_address_of_the_daemon() -> None:
    host = Settings().host
    assert read("specd.socket")["Socket"]["ListenStream"] == f"{host.host}:{host.port}"


def test_the_stop_timeout_is_longer_than_the_grace_period() -> None:
    assert float(read("specd.service")["Service"]["TimeoutStopSec"]) > Settings().shutdown_grace_s


def test_gpus_of_every_vendor_are_allowed() -> None:
    text = (UNITS / "specd.service").read_text(encoding="utf-8")
    allowed = re.findall(r"^DeviceAllow=(\S+)", text, re.MULTILINE)
    assert {"char-nvidia*", "char-drm", "char-kfd"} <= set(allowed)
