"""Changes of the environment file at SIGHUP, and values that stay until the next start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from specd.daemon.reload import ReloadableEnvironment
from specd.errors import BadSetting
from specd.settings import Settings

KEY = "SPECD_API_KEYS"


class Service:
    """Simulate a start by systemd: the file overrides the environment `unit`."""

    def __init__(self, path: Path, file: str | None, **unit: str) -> None:
        self.path = path
        self.write(file)
        given = dict(line.split("=", 1) for line in (file or "").splitlines())
        self.variables = ReloadableEnvironment(
            Settings(env_file=path), {"HOME": "/root", **unit, **given}
        )

    def write(self, file: str | None) -> None:
        if file is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(file, encoding="utf-8")

    def reload(self, file: str | None) -> dict[str, str]:
        self.write(file)
        variables = self.variables.reread()
        self.variables.commit(variables)
        del variables["HOME"]
        return variables


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "specd.env"


def test_changed_added_and_emptied_lines_apply(path: Path) -> None:
    service = Service(path, f"{KEY}=one")
    assert service.reload(f"{KEY}=two") == {KEY: "two"}
    assert service.reload(f"{KEY}=two\nOLLAMA_DEBUG=1") == {KEY: "two", "OLLAMA_DEBUG": "1"}
    assert service.reload(f"{KEY}=two") == {KEY: "two"}
    assert service.reload(f"{KEY}=") == {KEY: ""}


def test_a_deleted_line_keeps_its_value_and_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "specd")
    service = Service(path, f"{KEY}=file", **{KEY: "unit"})
    assert service.reload(f"{KEY}=later") == {KEY: "later"}
    assert not caplog.messages
    for _ in range(2):
        assert service.reload("# nothing") == {KEY: "later"}
        [said] = caplog.messages
        assert f"{KEY} is no longer in {path} and keeps its value" in said
        caplog.clear()


def test_a_deleted_file_changes_nothing(path: Path) -> None:
    service = Service(path, f"{KEY}=one")
    with pytest.raises(BadSetting, match=r"specd\.env no longer exists"):
        service.reload(None)
    assert service.reload(f"{KEY}=two") == {KEY: "two"}
    with pytest.raises(BadSetting, match="no longer exists"):
        service.reload(None)


def test_a_new_file_adds_to_the_unit(path: Path) -> None:
    service = Service(path, None, OLLAMA_DEBUG="1")
    assert service.reload(None) == {"OLLAMA_DEBUG": "1"}
    assert service.reload(f"{KEY}=one") == {"OLLAMA_DEBUG": "1", KEY: "one"}
    with pytest.raises(BadSetting, match="no longer exists"):
        service.reload(None)


def test_refused_values_are_not_committed(path: Path) -> None:
    service = Service(path, f"{KEY}=one")
    service.write(f"{KEY}=refused")
    service.variables.reread()
    assert service.reload("") == {KEY: "one"}


def test_values_that_the_unit_sets_over_the_file_stay(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "specd")
    path.write_text(f"{KEY}=file")
    variables = ReloadableEnvironment(Settings(env_file=path), {KEY: "by hand"})
    assert variables.reread() == {KEY: "by hand"}
    assert f"{KEY} was not set by {path}" in caplog.text
    path.write_text("")
    caplog.clear()
    assert variables.reread() == {KEY: "by hand"}
    assert not caplog.messages


def test_a_file_that_was_unreadable_at_the_start_applies_later(path: Path) -> None:
    """The daemon's user may get permission to read it later; systemd reads it as root."""
    path.mkdir()
    variables = ReloadableEnvironment(Settings(env_file=path), {KEY: "one", "HOME": "/root"})
    with pytest.raises(BadSetting, match="cannot read "):
        variables.reread()
    path.rmdir()
    path.write_text(f"{KEY}=two\nOLLAMA_DEBUG=1\n")
    assert variables.reread() == {KEY: "two", "HOME": "/root", "OLLAMA_DEBUG": "1"}


def test_without_a_file_there_is_only_the_environment() -> None:
    variables = ReloadableEnvironment(Settings(env_file=None), {KEY: "one"})
    assert variables.reread() == {KEY: "one"}
