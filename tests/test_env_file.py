"""Test the service's environment file, which SIGHUP reads again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import BadSetting
from specd.settings import Settings, read_env_file
from specd.settings.env_file import parse_env

#: Lines that shells and other readers of such files read differently.
WEIRD = r"""A=1
B=5m # five
 export X=1
C="a\$b" d
;c
#E=1
F=a\
b
G='x\y'
H = v
I=
J="two
lines"
K=a"b"
L=a\ b\\
M="q"  'r'
N=\a"b"
O="\n\""
P=last"""
_AS_SYSTEMD = {
    "A": "1",
    "B": "5m # five",
    "C": "a$bd",
    "F": "ab",
    "G": r"x\y",
    "H": "v",
    "I": "",
    "J": "two\nlines",
    "K": 'a"b"',
    "L": "a b\\",
    "M": "qr",
    "N": 'a"b"',
    "O": r"\n" + '"',
    "P": "last",
}


def test_ambiguous_lines_are_read_as_systemd_reads_them() -> None:
    """tests/systemd/test_env_file.py compares the result with a real systemd."""
    assert parse_env(WEIRD) == _AS_SYSTEMD


def test_a_comment_ends_with_its_line() -> None:
    """Before systemd 254, a backslash continued a comment on the next line."""
    assert parse_env("# c \\\nA=1\n;\\") == {"A": "1"}


@given(st.text(alphabet="A=B \"'\\#;\n$"))
def test_any_text_is_read(text: str) -> None:
    assert all(name.isidentifier() for name in parse_env(text))


def test_it_is_read_as_systemd_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "specd.env"
    path.write_text(
        "# a comment\n"
        "; another\n"
        "\n"
        "OLLAMA_HOST=0.0.0.0\n"
        "  OLLAMA_MODELS='/srv/my models'\n"
        'OLLAMA_ORIGINS="https://a,https://b"\n'
        "OLLAMA_KEEP_ALIVE=\n"
        "SPECD_PAIRS=$HOME/${USER}\n"
        "#OLLAMA_DEBUG=1\n",
        encoding="utf-8",
    )
    assert read_env_file(path) == {
        "OLLAMA_HOST": "0.0.0.0",
        "OLLAMA_MODELS": "/srv/my models",
        "OLLAMA_ORIGINS": "https://a,https://b",
        "OLLAMA_KEEP_ALIVE": "",
        "SPECD_PAIRS": "$HOME/${USER}",
    }


def test_a_missing_file_sets_nothing(tmp_path: Path) -> None:
    assert read_env_file(tmp_path / "specd.env") == {}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "specd.env").mkdir()
    with pytest.raises(BadSetting, match=r"cannot read .*specd\.env: Is a directory"):
        read_env_file(tmp_path / "specd.env")
    (tmp_path / "other").write_bytes(b"A=\xff\n")
    with pytest.raises(BadSetting, match="is not UTF-8"):
        read_env_file(tmp_path / "other")


def test_settings_of_variables_match_those_of_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "7")
    said = Settings.of({"OLLAMA_KEEP_ALIVE": " '7m' ", "PATH": "/bin"})
    assert (said.keep_alive_s, said.max_queue) == (420.0, 512)
    assert Settings.of({"OLLAMA_MAX_QUEUE": "7"}) == Settings()
    with pytest.raises(BadSetting, match="SPECD_SHUTDOWN_GRACE='soon' must be"):
        Settings.of({"SPECD_SHUTDOWN_GRACE": "soon"})
