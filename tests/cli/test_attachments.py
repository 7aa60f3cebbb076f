"""Paths of images and audio files in a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.cli.conversation import encode_file, extract_files
from specd.errors import InvalidRequest

SEES = ("completion", "vision")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.png", "b c.JPG", "d'e.webp", "f.jpeg", "g.gif", "h.wav", "i.pngx"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "text,left,names",
    [
        ("see ./a.png", "see", ["a.png"]),
        ("see ./a.png.", "see .", ["a.png"]),
        ("~/f.jpeg and ./a.png?", "and ?", ["f.jpeg", "a.png"]),
        (r"./b\ c.JPG what", "what", ["b c.JPG"]),
        ("'./b c.JPG' what", "what", ["b c.JPG"]),
        ('what is "./b c.JPG"', "what is", ["b c.JPG"]),
        (r"./d\'e.webp", "", ["d'e.webp"]),
        ("a.png", "a.png", []),
        ("./none.png", "./none.png", []),
        ("./folder.png", "./folder.png", []),
        ("./g.gif ./h.wav ./i.pngx", "./g.gif ./h.wav ./i.pngx", []),
        ("  ./none.png ", "  ./none.png ", []),
    ],
)
def test_paths_of_images_are_removed_from_the_text(
    folder: Path, text: str, left: str, names: list[str]
) -> None:
    found = extract_files(text, SEES)
    assert (found[0], [file.name for file in found[1]]) == (left, names)


def test_only_files_that_the_model_can_read_are_attached(folder: Path) -> None:
    assert extract_files("./a.png ./h.wav", ["completion"]) == ("./a.png ./h.wav", [])
    assert extract_files("./a.png ./h.wav", ["audio"]) == ("./a.png", [Path("h.wav")])


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        encode_file(tmp_path / "none.png")


@given(st.text(alphabet="a/~.\\'\" \n\x00png", max_size=40))
def test_any_text_is_accepted(text: str) -> None:
    left, files = extract_files(text, SEES)
    assert files or left == text
