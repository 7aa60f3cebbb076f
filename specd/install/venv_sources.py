"""Collect the packages to copy into the service's environment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import specd
from specd.errors import InstallError
from specd.install.layout import packaged

#: Files of specd's own distribution to skip: an editable link, and pip's note of its origin.
_CHECKOUT_FILES: Final = re.compile(r".*\.pth|direct_url\.json|RECORD|REQUESTED")
_NOT_CODE: Final = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache"})
_OWN_FILES_IN: Final = ("configs", "systemd")


@dataclass(frozen=True)
class Sources:
    """The files to copy: path in the new environment's site-packages → path here.

    names: the distributions, in order.  docs: pages next to the packages.
    """

    files: Mapping[Path, Path]
    names: tuple[str, ...]
    docs: tuple[Path, ...] = ()
    n_bytes: int = 0


def collect_packages() -> Sources:
    """Return specd and its requirements in their installed versions.  Raises InstallError."""
    distributions = _required_distributions()
    files: dict[Path, Path] = {}
    for name, distribution in distributions.items():
        files |= _own_files(distribution) if name == specd.DISTRIBUTION else _files_of(distribution)
    docs = tuple(sorted(packaged("docs").glob("service.md")))
    n_bytes = sum(path.stat().st_size for path in files.values())
    return Sources(files, tuple(sorted(distributions)), docs, n_bytes)


def _required_distributions() -> dict[str, Distribution]:
    """Return the distributions by normalized name, including the extras of requirements."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(specd.DISTRIBUTION)]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = name, frozenset(requirement.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            found[name] = metadata.distribution(requirement.name)
        except PackageNotFoundError as error:
            raise InstallError(
                f"the package {requirement.name} is missing; set specd up again (make install)"
            ) from error
        extras = {"", *requirement.extras}
        needed = map(Requirement, _requirements(name, found[name]))
        waiting += [
            one
            for one in needed
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return found


def _requirements(name: str, distribution: Distribution) -> Iterable[str]:
    """Return a distribution's requirements; a checkout's may be newer than its metadata."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if name == specd.DISTRIBUTION and project.is_file():
        declared: list[str] = tomllib.loads(project.read_text("utf-8"))["project"]["dependencies"]
        return declared
    return distribution.requires or ()


def _files_of(distribution: Distribution) -> dict[Path, Path]:
    """Return all files but scripts, which are outside of site-packages and name another Python."""
    if distribution.files is None:
        raise InstallError(
            f"the files of {distribution.name} are unknown: it was not installed by pip;"
            " set specd up in an environment of its own (make install)"
        )
    found = {Path(*file.parts): Path(str(file.locate())) for file in distribution.files}
    return {
        target: path
        for target, path in found.items()
        if ".." not in target.parts and not target.is_absolute() and path.is_file()
    }


def _own_files(distribution: Distribution) -> dict[Path, Path]:
    """Return specd's own files as in a wheel, also from a checkout."""
    found = {
        Path(*file.parts): Path(str(file.locate()))
        for file in distribution.files or ()
        if file.parts[0].endswith(".dist-info") and not _CHECKOUT_FILES.fullmatch(file.name)
    }
    folders = {Path("specd"): Path(__file__).parents[1]}
    folders |= {Path("specd", name): packaged(name) for name in _OWN_FILES_IN}
    for target, folder in folders.items():
        found |= {target / path.relative_to(folder): path for path in _tree(folder)}
    return found


def _tree(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _NOT_CODE & set(path.relative_to(folder).parts):
            yield path
