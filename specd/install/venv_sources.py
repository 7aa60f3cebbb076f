"""Collect the packages to copy into the service's environment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

import specd
from specd.errors import InstallError
from specd.install.layout import packaged

#: Files of specd's own distribution to skip: an editable link, and pip's note of its origin.
_CHECKOUT_FOLDERS: Final = re.compile(r".*\.pth|direct_url\.json|RECORD|REQUESTED")
_NOT_CODE: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class SourceFile:
    """A file to copy.  target: relative to the new environment's site-packages."""

    path: Path
    target: Path


@dataclass(frozen=True)
class Sources:
    """The files to copy.  names: the distributions, in order.  docs: pages next to the packages."""

    files: tuple[SourceFile, ...]
    names: tuple[str, ...]
    docs: tuple[Path, ...] = ()
    n_bytes: int = 0


def collect_packages() -> Sources:
    """Return specd and its requirements in their installed versions.  Raises InstallError."""
    distributions = _required_distributions(specd.DISTRIBUTION)
    files: dict[Path, SourceFile] = {}
    for name, distribution in distributions.items():
        found = _files_of(distribution) if name != specd.DISTRIBUTION else _own_files(distribution)
        files.update((source.target, source) for source in found)
    docs = tuple(sorted(packaged("docs").glob("service.md")))
    n_bytes = sum(source.path.stat().st_size for source in files.values())
    return Sources(tuple(files.values()), tuple(sorted(distributions)), docs, n_bytes)


def _required_distributions(root: str) -> dict[str, Distribution]:
    """Return the distributions by normalized name, including the extras of requirements."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(root)]
    while waiting:
        requirement = waiting.pop()
        name = _normalized(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            found[name] = metadata.distribution(requirement.name)
        except PackageNotFoundError as error:
            raise InstallError(
                f"the package {requirement.name} is missing; set specd up again (make install)"
            ) from error
        extras = {"", *requirement.extras}
        for text in _requirements(name, found[name]):
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def _requirements(name: str, distribution: Distribution) -> Iterable[str]:
    """Return a distribution's requirements; a checkout's may be newer than its metadata."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if name == specd.DISTRIBUTION and project.is_file():
        declared: list[str] = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
        return declared
    return distribution.requires or ()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(distribution: Distribution) -> Iterator[SourceFile]:
    """Yield all files but scripts, which are outside of site-packages and name another Python."""
    if distribution.files is None:
        raise InstallError(
            f"the files of {distribution.name} are unknown: it was not installed by pip;"
            " set specd up in an environment of its own (make install)"
        )
    for file in distribution.files:
        path = Path(str(file.locate()))
        if ".." not in file.parts and not file.is_absolute() and path.is_file():
            yield SourceFile(path, Path(*file.parts))


def _own_files(distribution: Distribution) -> Iterator[SourceFile]:
    """Yield specd's own files as in a wheel, also from a checkout."""
    for file in distribution.files or ():
        folder = file.parts[0]
        if folder.endswith(".dist-info") and not _CHECKOUT_FOLDERS.fullmatch(file.name):
            yield SourceFile(Path(str(file.locate())), Path(*file.parts))
    package = Path(__file__).parents[1]
    for path in _tree(package):
        yield SourceFile(path, Path("specd") / path.relative_to(package))
    for name in ("configs", "systemd"):
        folder_of = packaged(name)
        for path in _tree(folder_of):
            yield SourceFile(path, Path("specd") / name / path.relative_to(folder_of))


def _tree(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _NOT_CODE & set(path.relative_to(folder).parts):
            yield path
