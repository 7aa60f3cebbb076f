"""The llama-server that a bench compares with: where it is and how it is started."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import specd
from specd.bench import peer_build
from specd.bench.peer_load import PeerLoad
from specd.errors import InvalidRequest

_QUESTION_S = 60.0
_WHEEL = (sys.executable, "-m", "specd.bench.peer_xllamacpp")
_NONE_HERE = (
    "found no llama-server to compare with: build one with `make peer` in specd's repository, name"
    f" one with --peer llama-server=PATH, or pip install '{specd.DISTRIBUTION}[bench]'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBinary:
    """A llama-server executable.

    build: its version, for people.  same_build: whether it has the llama.cpp sources of specd's
    engine.  usage: output of `--help`; "" for the wheel's server, which has no command line.
    environment: variables that it is started with.
    """

    program: tuple[str, ...]
    build: str
    same_build: bool
    usage: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, path: str | None = None) -> Self:
        """Return the server at `path`, else that of `make peer`, else the wheel's.

        Raises InvalidRequest.
        """
        if path is not None:
            return cls._named(path)
        try:
            built = peer_build.server_path()
        except peer_build.NoLibraries:
            built = None
        if built is not None and built.is_file():
            return cls._of_same_build(built)
        if find_spec("xllamacpp") is not None:
            return cls(program=_WHEEL, build=_run_and_read(_WHEEL, {}).strip(), same_build=False)
        raise InvalidRequest(_NONE_HERE)

    @classmethod
    def _named(cls, path: str) -> Self:
        program = shutil.which(path)
        if program is None:
            raise InvalidRequest(f"{path!r} is not an executable program")
        version = _version(program, {})
        commit = peer_build.engine_commit()
        return cls(
            program=(str(Path(program).resolve()),),
            build=f"llama-server {version}",
            same_build=bool(commit) and matches_commit(version, commit),
            usage=_run_and_read((program, "--help"), {}),
        )

    @classmethod
    def _of_same_build(cls, built: Path) -> Self:
        environment = peer_build.library_environment()
        version = _version(str(built), environment)
        return cls(
            program=(str(built),),
            build=f"llama-server {version}, on the libraries of specd's own engine",
            same_build=True,
            usage=_run_and_read((str(built), "--help"), environment),
            environment=environment,
        )

    def knows(self, option: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self.usage) is not None

    def command(self, load: PeerLoad, port: int) -> list[str]:
        if not self.usage:
            return [*self.program, str(port), json.dumps(asdict(load))]
        return [*self.program, *load.arguments(port, self.knows)]


def _version(program: str, environment: Mapping[str, str]) -> str:
    """`0.5.0 (build 1, commit 0123abc), built with GNU 12.2.0 for Linux x86_64`."""
    said = _run_and_read((program, "--version"), environment)
    lines = [line.strip() for line in said.splitlines()]
    version = next((line for line in lines if line.startswith("version:")), None)
    if version is None:
        raise InvalidRequest(
            f"{program} prints no llama.cpp version with --version: is it llama-server?"
        )
    made = next((line for line in lines if line.startswith("built with")), "")
    return ", ".join(filter(None, [version.removeprefix("version:").strip(), made]))


def matches_commit(version: str, commit: str) -> bool:
    """Return whether `version` names `commit`; either may be abbreviated to 7 digits or more."""
    return any(
        word.startswith(commit) or commit.startswith(word)
        for word in re.findall(r"\b[0-9a-f]{7,40}\b", version)
    )


def _run_and_read(command: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return the output of both streams.  Raises InvalidRequest where the command fails."""
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUESTION_S,
            check=False,
            env={**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidRequest(f"{command[0]} cannot be run to learn its build: {error}") from error
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InvalidRequest(f"{command[0]} cannot be run to learn its build: {last}")
    return answer.stdout + answer.stderr
