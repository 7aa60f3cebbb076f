"""Install specd with its dependencies into .venv: `make install`.

A second run does nothing if everything is up to date.  `--dev` adds the packages for `make test`,
`check` and `bench`.  Compiling llama.cpp is slow, so its wheel is cached in the user's cache folder
and shared by all clones on the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.accelerator import (
    CMAKE_ARGS,
    AcceleratorChoice,
    BuildHost,
    choose,
    fingerprint,
    inspect_machine,
)
from scripts.progress import Progress, follow

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".specd-installed"
#: The versions that the tests run with; users get what pyproject.toml allows.
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
BUILD_LOG = ROOT / "build" / "llama-cpp-python.log"
OLDEST_PYTHON = (3, 11)


class SetUpError(Exception):
    """Something is missing; the text says what, and how to get it."""


@dataclass(frozen=True)
class Stamp:
    """The state of .venv: its configuration, and the accelerator of its build.

    dev: it includes the packages for the tests.
    """

    configuration: str
    accelerator: str
    root: str
    dev: bool = False

    @classmethod
    def read(cls, path: Path) -> Stamp | None:
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def serves(self, configuration: str, requested: str, root: Path, *, dev: bool) -> bool:
        """Return whether .venv is up to date; its accelerator stays until another is requested."""
        return (
            self.configuration == configuration
            and self.dev >= dev
            and self.root == str(root)
            and requested in {"", self.accelerator}
        )


def main(arguments: Sequence[str] = ()) -> int:
    try:
        require_python(arguments)
        install(os.environ, dev="--dev" in arguments)
    except (SetUpError, ValueError) as error:
        say(f"\nspecd could not be set up: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted; run `make install` again to continue")
        return 130
    return 0


def say(text: str) -> None:
    print(text, flush=True)


def require_python(arguments: Sequence[str] = ()) -> None:
    """Restart with a newer Python if this one is too old and a newer one is installed."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    for minor in range(OLDEST_PYTHON[1] + 4, OLDEST_PYTHON[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer and subprocess.run([newer, "-c", ""], check=False).returncode == 0:
            os.execv(newer, [newer, "-m", "scripts.install", *arguments])
    have = ".".join(map(str, sys.version_info[:3]))
    raise SetUpError(
        f"specd needs Python 3.11 or newer, but this is {have} ({sys.executable})."
        "  Install one (Debian, Ubuntu: apt install python3.12 python3.12-venv),"
        " or name it: make PYTHON=/path/to/python3.12 install"
    )


def install(environment: Mapping[str, str], *, dev: bool = False) -> None:
    requested = environment.get("SPECD_ACCEL", "").strip().lower()
    described = (ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()
    configuration = hashlib.sha256(described).hexdigest()
    stamp = Stamp.read(STAMP)
    is_there = (VENV / "bin" / "specd").exists()
    if stamp and is_there and stamp.serves(configuration, requested, ROOT, dev=dev):
        return
    dev = dev or bool(stamp and stamp.dev)
    requirement = llama_requirement(ROOT / "pyproject.toml")
    machine = inspect_machine()
    choice = choose(machine, requested, requirement)
    if stamp and not requested and stamp.accelerator in CMAKE_ARGS:
        choice = AcceleratorChoice(stamp.accelerator, "the earlier choice (`make clean` resets it)")
    say(f"llama.cpp for {choice.accelerator}: {choice.reason}.")
    if choice.hint:
        say(choice.hint)
    make_venv()
    STAMP.unlink(missing_ok=True)
    wheel = find_or_build(requirement, choice, machine, environment)
    pip_install(wheel, dev=dev)
    check_library(choice)
    Stamp(configuration, choice.accelerator, str(ROOT), dev).write(STAMP)
    say("specd is set up: .venv/bin/specd")


def llama_requirement(pyproject: Path) -> str:
    """Return the pinned requirement from pyproject.toml."""
    import tomllib  # noqa: PLC0415 - `require_python` runs on Pythons that lack it

    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return next(str(d) for d in project["dependencies"] if d.startswith("llama-cpp-python=="))


# --------------------------------------------------------------------------- the environment


def make_venv() -> None:
    if PYTHON.exists() and run_quietly([str(PYTHON), "-m", "pip", "--version"]):
        return
    if not run_quietly([sys.executable, "-c", "import ensurepip, venv"]):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise SetUpError(
            f"{sys.executable} cannot make virtual environments: venv and ensurepip are missing."
            f"  Debian, Ubuntu: apt install python{version}-venv"
        )
    say(f"making {VENV.name} with {sys.executable}")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)], "the virtual environment failed")


def run_quietly(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(command: Sequence[str], error: str) -> None:
    if subprocess.run(command, check=False, cwd=ROOT).returncode:
        raise SetUpError(f"{error} (above): {' '.join(command)}")


def pip_install(wheel: Path, *, dev: bool) -> None:
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    # Forced, because for pip a build for another accelerator is the same version.
    run(
        [*pip, "--quiet", "--force-reinstall", "--no-deps", str(wheel)],
        "llama-cpp-python could not be installed",
    )
    tests = ", and the packages for its tests" if dev else ""
    say(f"installing specd and its dependencies{tests} (a minute)")
    packages = ["-e", ".[dev]", "-c", str(CONSTRAINTS)] if dev else ["-e", "."]
    run([*pip, "--quiet", *packages], "pip failed")


def check_library(choice: AcceleratorChoice) -> None:
    """Load the library once, so that a failure is explained now."""
    command = [str(PYTHON), "-c", "import llama_cpp"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        error = tried.stderr.strip().splitlines()[-1:] or [f"exit status {tried.returncode}"]
        raise SetUpError(
            f"llama.cpp was built for {choice.accelerator}, but it does not load here: {error[0]}."
            "  SPECD_ACCEL=cpu make install builds for the CPU."
        )


# --------------------------------------------------------------------------- the wheel


def cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "specd" / "wheels"


def find_wheel(folder: Path, requirement: str) -> Path | None:
    version = requirement.partition("==")[2]
    return next(iter(sorted(folder.glob(f"llama_cpp_python-{version}-*.whl"))), None)


def find_or_build(
    requirement: str, choice: AcceleratorChoice, machine: BuildHost, environment: Mapping[str, str]
) -> Path:
    extra = environment.get("CMAKE_ARGS", "")
    folder = cache_folder(environment) / fingerprint(choice, machine, extra)
    if wheel := find_wheel(folder, requirement):
        say(f"using the wheel built earlier: {wheel}")
        return wheel
    require_compiler(environment)
    say(f"building {requirement}: about five minutes on the CPU, longer for a GPU ({BUILD_LOG})")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        build(requirement, build_environment(choice, machine, environment), Path(scratch))
        built = find_wheel(Path(scratch), requirement)
        if built is None:
            raise SetUpError(f"pip made no wheel of {requirement}; see {BUILD_LOG}")
        # Renamed at the end, so that an interrupted build leaves no wheel.
        return built.replace(folder / built.name)


def require_compiler(environment: Mapping[str, str]) -> None:
    names = [environment["CXX"]] if environment.get("CXX") else ["c++", "g++", "clang++"]
    if not any(shutil.which(name.split()[0]) for name in names):
        raise SetUpError(
            f"no C++ compiler ({', '.join(names)}), which llama.cpp is built with."
            "  Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++;"
            " macOS: xcode-select --install"
        )


def build_environment(
    choice: AcceleratorChoice, machine: BuildHost, environment: Mapping[str, str]
) -> dict[str, str]:
    args = " ".join((*CMAKE_ARGS[choice.accelerator], environment.get("CMAKE_ARGS", ""))).strip()
    changed = {"CMAKE_ARGS": args}
    if choice.accelerator == "cuda" and machine.nvcc and not environment.get("CUDACXX"):
        changed["CUDACXX"] = machine.nvcc
    return {**environment, **changed}


def build(requirement: str, environment: Mapping[str, str], folder: Path) -> None:
    # Without pip's cache, which could return a build for another accelerator.
    options = ["--verbose", "--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python"]
    command = [str(PYTHON), "-m", "pip", "wheel", *options, "-w", str(folder), requirement]
    progress = Progress(sys.stdout, live=sys.stdout.isatty())
    status = follow(command, environment, BUILD_LOG, progress)
    if status:
        lines = BUILD_LOG.read_text(encoding="utf-8", errors="replace").splitlines()
        say("\n".join(lines[-40:]))
        raise SetUpError(f"the build of {requirement} failed; all of its output is in {BUILD_LOG}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
