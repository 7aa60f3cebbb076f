"""Test what `make peer` unpacks of a source distribution."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from benchmarks.peer import __main__ as peer
from scripts.install import SetUpError
from tools.llama_cpp_source import needed_path


def archive(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            file.addfile(member, io.BytesIO(name.encode()))
    return path


@pytest.mark.parametrize(
    "member,path",
    [
        ("p-1/vendor/llama.cpp/tools/server/main.cpp", "tools/server/main.cpp"),
        ("p-1/vendor/llama.cpp/tools/ui/ui.h.in", "tools/ui/ui.h.in"),
        ("p-1/vendor/llama.cpp/tools/ui/src/app.html", None),
        ("p-1/vendor/llama.cpp/ggml/src/ggml.c", None),
        ("p-1/vendor/llama.cpp/common/../../../../etc/passwd", None),
        ("p-1/common/x.cpp", None),
        ("p-1", None),
    ],
)
def test_only_the_servers_own_sources_are_unpacked(member: str, path: str | None) -> None:
    assert needed_path(member, peer.NEEDED) == path


def test_sources_are_unpacked_as_llama_cpps_folder(tmp_path: Path) -> None:
    name = "p-1/vendor/llama.cpp/tools/server/main.cpp"
    folder = peer.unpack_server(archive(tmp_path / "a.tar.gz", name, "p-1/README"), tmp_path / "to")
    assert [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()] == [
        "tools/server/main.cpp"
    ]
    assert (folder / "tools/server/main.cpp").read_text() == name


def test_sources_without_a_server_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetUpError, match="holds no llama-server"):
        peer.unpack_server(archive(tmp_path / "a.tar.gz", "p-1/README"), tmp_path / "to")
