"""systemd's own texts, there and back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.install.systemd_text import (
    env_file_text,
    environment_line,
    path_words,
    shown_environment,
    shown_files,
)
from specd.settings import read_env_file


def test_what_systemctl_shows_is_read() -> None:
    text = 'A=1 "B=a b" "C=x\\"y\\$z\\\\" D= $\'E=it\\\'s\' "F=two\nlines" G=a=b'
    assert shown_environment(text) == {
        "A": "1",
        "B": "a b",
        "C": 'x"y$z\\',
        "D": "",
        "E": "it's",
        "F": "two\nlines",
        "G": "a=b",
    }
    assert shown_environment("") == {}


def test_files_that_systemctl_shows_are_read() -> None:
    lines = ["/etc/a b (ignore_errors=yes)", "", "/etc/c (ignore_errors=no)"]
    assert shown_files(lines) == [Path("/etc/a b"), Path("/etc/c")]


def test_paths_and_values_are_escaped() -> None:
    assert path_words("/a b%c") == '"/a b%%c"'
    assert environment_line("A", 'x "y" \\ %') == 'Environment="A=x \\"y\\" \\\\ %%"'


values = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), max_size=20)


@given(values)
def test_a_file_of_settings_is_read_as_it_was_meant(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    path = tmp_path_factory.mktemp("env") / "file"
    path.write_text(env_file_text({"A": value, "B": "2"}))
    assert read_env_file(path) == {"A": value, "B": "2"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_finds_nothing_wrong_with_what_is_written(tmp_path: Path) -> None:
    lines = [environment_line("A", 'x "y" \\ % $z'), f"ReadWritePaths={path_words('/a b%c')}"]
    unit = tmp_path / "a.service"
    unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *lines, ""]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=yes", "--man=no", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
