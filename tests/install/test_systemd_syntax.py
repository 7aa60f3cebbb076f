"""Texts of systemd are parsed and written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import InstallError
from specd.install.systemd_syntax import (
    bind_words,
    env_file_text,
    environment_line,
    escape_unprintable,
    parse_environment,
    parse_environment_files,
    path_words,
    setting_line,
)
from specd.settings import read_env_file


def test_the_environment_property_is_parsed() -> None:
    text = 'A=1 "B=a b" "C=x\\"y\\$z\\\\" D= $\'E=it\\\'s\' "F=two\nlines" G=a=b'
    assert parse_environment(text) == {
        "A": "1",
        "B": "a b",
        "C": 'x"y$z\\',
        "D": "",
        "E": "it's",
        "F": "two\nlines",
        "G": "a=b",
    }
    assert parse_environment("") == {}


def test_the_environment_files_property_is_parsed() -> None:
    lines = ["/etc/a b (ignore_errors=yes)", "", "/etc/c (ignore_errors=no)"]
    assert parse_environment_files(lines) == (Path("/etc/a b"), Path("/etc/c"))


def test_paths_and_values_are_escaped() -> None:
    assert path_words("/a b%c") == '"/a b%%c"'
    assert path_words("/bob's:a") == '"/bob\'s:a"'
    assert bind_words("/bob's:a") == '"/bob\'s\\:a"'
    assert environment_line("A", 'x "y" \\ %') == 'Environment="A=x \\"y\\" \\\\ %%"'
    assert setting_line("User", "a%b") == "User=a%%b"


#: Ends of lines, of the terminal's own, and what turns or hides the text around it.
UNSEEN = ("\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u2028", "\u202e", "\u200b", "\udcff")


@pytest.mark.parametrize("character", UNSEEN)
def test_control_characters_are_refused_in_units(character: str) -> None:
    text = f"/a{character}ExecStartPre=+/evil"
    for write in (path_words, bind_words):
        with pytest.raises(InstallError, match=r"/a\\.*ExecStartPre") as caught:
            write(text)
        assert character not in str(caught.value)
    for name_it in (environment_line, setting_line, lambda name, text: env_file_text({name: text})):
        with pytest.raises(InstallError, match="User") as caught:
            name_it("User", text)
        assert "evil" not in str(caught.value)  # a value may be a secret


def test_unprintable_characters_are_escaped_for_a_terminal() -> None:
    assert escape_unprintable("/Ünï/モデル 😀\x1b[2J\u202e\n") == "/Ünï/モデル 😀\\x1b[2J\\u202e\\n"


values = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), max_size=20)


@given(values)
def test_an_env_file_is_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    path = tmp_path_factory.mktemp("env") / "file"
    path.write_text(env_file_text({"A": value, "B": "2"}))
    assert read_env_file(path) == {"A": value, "B": "2"}


PATHS = ("/a b%c", "/mnt/bob's/models", "/mnt/a:b/c", '/mnt/"x"/\\y', "/mnt/é %n/[x]", "/a;b #c")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("path", PATHS)
def test_systemd_accepts_the_written_units(tmp_path: Path, path: str) -> None:
    unit = tmp_path / "a.service"
    lines = [
        "[Unit]",
        f"RequiresMountsFor={path_words(path)}",
        "[Service]",
        "ExecStart=/bin/true",
        setting_line("User", "root"),
        environment_line("A", f"{path} $z"),
        f"ReadWritePaths={path_words(path)} {path_words(path)}",
        f"BindPaths={bind_words(path)} {bind_words(path)}",
    ]
    unit.write_text("\n".join([*lines, ""]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=yes", "--man=no", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
