"""The llama-server that a bench compares with: where it is and how it is started.

`make peer` builds one on the libraries of specd's own engine, since the wheel of llama-cpp-python
has llama.cpp's libraries but no server.  A bench then compares two servers on one build of
llama.cpp, not two compilers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import specd
from specd.bench.gguf_cache import cache_directory
from specd.errors import InvalidRequest, SpecdError

_QUESTION_S = 60.0
_WHEEL = (sys.executable, "-m", "specd.bench.peer_xllamacpp")
_NONE_HERE = (
    "found no llama-server to compare with: build one with `make peer` in specd's repository, name"
    f" one with --peer llama-server=PATH, or pip install '{specd.DISTRIBUTION}[bench]'"
)
#: Takes every layer there is, in every version of llama.cpp.
ALL_LAYERS = 999
_DISTRIBUTION = "llama-cpp-python"
#: The wheel has each library under up to three names and in two folders; match one name only.
_LIBRARY = re.compile(r"lib/lib(?P<name>[\w-]+)\.(?:so\.\d+|\d+\.dylib)")
_COMMIT = (
    "import ctypes, sys\n"
    "commit = ctypes.CDLL(sys.argv[1]).ggml_commit\n"
    "commit.restype = ctypes.c_char_p\n"
    "print(commit().decode())"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """The configuration of one peer server.

    drafter: None decodes plainly.  n_draft_max: at least 1 with a drafter, else 0.
    n_threads: 0 leaves the number to the server.  n_ctx: tokens per slot.  n_gpu_layers: −1 is all.
    """

    target: str
    drafter: str | None = None
    n_draft_max: int = 0
    n_threads: int = 0
    n_ctx: int = 4096
    n_slots: int = 1
    kv_type: str = "f16"
    flash_attention: bool | None = None
    n_gpu_layers: int = -1

    def __post_init__(self) -> None:
        assert (self.drafter is None) == (self.n_draft_max == 0), "a drafter drafts"

    @property
    def n_layers(self) -> int:
        return ALL_LAYERS if self.n_gpu_layers < 0 else self.n_gpu_layers

    def arguments(self, port: int, knows: Callable[[str], bool]) -> list[str]:
        """Return the arguments of llama-server.  knows: whether this build has an option."""
        attention = {None: "auto", True: "on", False: "off"}[self.flash_attention]
        n_layers = str(self.n_layers)
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--model", self.target]
        arguments += ["--parallel", str(self.n_slots), "--ctx-size", str(self.n_ctx * self.n_slots)]
        arguments += ["--cache-type-k", self.kv_type, "--cache-type-v", self.kv_type]
        arguments += ["--flash-attn", attention, "--n-gpu-layers", n_layers]
        if self.n_threads:
            n_threads = str(self.n_threads)
            arguments += ["--threads", n_threads, "--threads-batch", n_threads]
        if self.drafter is not None:
            arguments += self._draft_arguments(knows)
        # One cache for all slots, as in specd: drafts of unequal length then share one pass.
        optional = (["--kv-unified"], ["--no-ui"], ["--fit", "off"], ["--cache-ram", "0"])
        for words in optional:
            arguments += words if knows(words[0]) else []
        if not knows("--no-ui"):
            arguments.append("--no-webui")
        return arguments

    def _draft_arguments(self, knows: Callable[[str], bool]) -> list[str]:
        assert self.drafter is not None
        arguments = ["--model-draft", self.drafter, "--n-gpu-layers-draft", str(self.n_layers)]
        arguments += ["--cache-type-k-draft", self.kv_type, "--cache-type-v-draft", self.kv_type]
        if self.n_threads:
            n_threads = str(self.n_threads)
            arguments += ["--threads-draft", n_threads, "--threads-batch-draft", n_threads]
        # Newer builds draft only with --spec-type; older builds have other defaults for minima.
        # Without a minimal probability, each draft has n_draft_max tokens.
        n_max = str(self.n_draft_max)
        if knows("--spec-draft-n-max"):
            arguments += ["--spec-type", "draft-simple", "--spec-draft-n-max", n_max]
            arguments += ["--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
        else:
            arguments += ["--draft-max", n_max, "--draft-min", "0", "--draft-p-min", "0"]
        return arguments


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
            return cls._at_path(path)
        try:
            built = server_path()
        except NoLibraries:
            built = None
        if built is not None and built.is_file():
            return cls._from_make_peer(built)
        if find_spec("xllamacpp") is not None:
            return cls(program=_WHEEL, build=_run_and_read(_WHEEL, {}).strip(), same_build=False)
        raise InvalidRequest(_NONE_HERE)

    @classmethod
    def _at_path(cls, path: str) -> Self:
        program = shutil.which(path)
        if program is None:
            raise InvalidRequest(f"{path!r} is not an executable program")
        version = _version(program, {})
        commit = engine_commit()
        return cls(
            program=(str(Path(program).resolve()),),
            build=f"llama-server {version}",
            same_build=bool(commit) and matches_commit(version, commit),
            usage=_run_and_read((program, "--help"), {}),
        )

    @classmethod
    def _from_make_peer(cls, built: Path) -> Self:
        environment = library_environment()
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
    output = _run_and_read((program, "--version"), environment)
    lines = [line.strip() for line in output.splitlines()]
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


# --------------------------------------------------------------------------- built by `make peer`


class NoLibraries(SpecdError):
    """llama-cpp-python is installed without the libraries that a server needs."""


def library_folders() -> tuple[Path, Path]:
    """Return the folder of the engine's libraries, then that of the others."""
    distribution = metadata.distribution(_DISTRIBUTION)
    root = Path(str(distribution.locate_file("")))
    return root / "llama_cpp" / "lib", root / "lib"


def build_id() -> str:
    """Return an id of the installed libraries' contents.  Raises NoLibraries."""
    digests = _library_digests()
    if "llama-common" not in digests:
        raise NoLibraries(f"{_DISTRIBUTION} is installed without libllama-common")
    rows = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _library_digests() -> dict[str, str]:
    """Return name → digest from the installation record; hashing a GPU build's files is slow."""
    found = {}
    for path in metadata.files(_DISTRIBUTION) or ():
        match = _LIBRARY.fullmatch(str(path))
        if match and path.hash:
            found[match["name"]] = path.hash.value
    return found


def server_path() -> Path:
    """Return the path of the server for the installed libraries; it may be missing.

    Raises NoLibraries.
    """
    return cache_directory() / "peers" / build_id() / "llama-server"


def library_environment() -> Mapping[str, str]:
    """Return the variables with which the server loads the installed libraries."""
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    return {variable: os.pathsep.join(map(str, library_folders()))}


def engine_commit() -> str:
    """Return the llama.cpp commit of the engine's libraries, "" where unknown."""
    base = next(iter(sorted(library_folders()[0].glob("libggml-base.*"))), None)
    if base is None:
        return ""
    # A child process, so that this one loads no native code.
    command = [sys.executable, "-c", _COMMIT, str(base)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.match(r"[0-9a-f]{7,40}", output)
    return match[0] if match else ""
