"""Run a real systemd in separate namespaces, and in it specd from this checkout."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
_SCRIPT = Path(__file__).with_name("box.sh")
_NEEDED = ("systemctl", "unshare", "nsenter", "setsid", "mount")
#: Timeout of every wait.  Most take milliseconds, but all tests share two cores.
PATIENCE_S = 60.0

Contents = str | bytes | Path


def reason_unavailable() -> str:
    """Return why no container can run here; "" if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a systemd of its own needs root on Linux"
    missing = [tool for tool in _NEEDED if shutil.which(tool) is None]
    if not Path("/lib/systemd/systemd").exists():
        missing.append("systemd")
    if missing:
        return f"a systemd of its own needs {', '.join(missing)}"
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return "" if " - cgroup2 " in mounts else "no cgroup2 is mounted"


@dataclass(frozen=True, slots=True)
class SystemdContainer:
    """A booted systemd; commands run inside it as root."""

    folder: Path

    @classmethod
    @contextlib.contextmanager
    def boot(
        cls,
        folder: Path,
        *,
        units: Mapping[str, str] | None = None,
        files: Mapping[str, Contents] | None = None,
        binds: Mapping[Path, str] | None = None,
        host_net: bool = False,
    ) -> Iterator[SystemdContainer]:
        """Boot a container for the duration of the block, and remove it afterwards.

        folder: an empty folder for the container.
        units: name (or `specd.service.d/x.conf`) → text.
        files: absolute path inside → contents.  Contents that begin with `#!` become executable,
        and a Path becomes a symbolic link.
        binds: path of the host → absolute path inside, read-only.
        Raises CalledProcessError with the boot's output.
        """
        for name, text in (units or {}).items():
            _put(folder / "units" / name, text)
        for path, contents in (files or {}).items():
            _put(folder / "files" / path.lstrip("/"), contents)
        mounts = [f"{source}:{target}:ro" for source, target in (binds or {}).items()]
        net = ["--host-net"] if host_net else []
        try:
            _run("up", folder, *net, *mounts)
            yield cls(folder)
        finally:
            _run("down", folder)

    def __call__(
        self, *command: str, check: bool = True, stdin: str = "", timeout_s: float = PATIENCE_S
    ) -> str:
        """Run a command; return its stdout.  check: raise CalledProcessError if it fails."""
        try:
            return self.result(*command, check=check, stdin=stdin, timeout_s=timeout_s).stdout
        except subprocess.CalledProcessError as error:
            if command[0] == "systemctl":  # whose own errors only refer to the journal
                error.add_note(self.result("journalctl", "-q", "-n", "30", "-o", "cat").stdout)
            raise

    def result(
        self, *command: str, check: bool = False, stdin: str = "", timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        return _run("run", self.folder, *command, check=check, stdin=stdin, timeout_s=timeout_s)

    def popen(self, *command: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a command with text pipes for stdin and stdout; it shares the test's stderr."""
        return subprocess.Popen(
            [_SCRIPT, "run", self.folder, *command],
            stdin=subprocess.PIPE,
            stdout=stdout,
            text=True,
        )

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit, as `systemctl show` prints it."""
        return self("systemctl", "show", unit, "-P", name).strip()

    def write(self, path: str, text: str) -> None:
        """Write a file inside, and let systemd reload its units."""
        self("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1"', "_", path, stdin=text)
        self("systemctl", "daemon-reload")

    def drop_in(self, unit: str, text: str, *, name: str = "override.conf") -> None:
        """Write a drop-in of a unit as `systemctl edit` would."""
        unit = unit if "." in unit else f"{unit}.service"
        self.write(f"/etc/systemd/system/{unit}.d/{name}", text)

    def log(self, unit: str = "specd") -> str:
        return self("journalctl", "-q", "-u", unit, "-o", "cat")

    def pid(self, unit: str = "specd") -> int:
        """Return the pid of the unit's main process inside; 0 if there is none."""
        return int(self.show(unit, "MainPID"))

    def processes(self, unit: str = "specd") -> dict[int, str]:
        """Return the command lines of the unit's processes by their pid inside."""
        group = self.show(unit, "ControlGroup")
        if not group:
            return {}
        script = (
            'for p in $(find "/sys/fs/cgroup$1" -name cgroup.procs -exec cat {} +); do'
            ' echo "$p $(tr "\\0" " " </proc/$p/cmdline)"; done 2>/dev/null; true'
        )
        lines = self("sh", "-c", script, "_", group).splitlines()
        return {int(pid): command for pid, _, command in (line.partition(" ") for line in lines)}

    def wait_until(self, condition: Callable[[], bool], *, what: str, unit: str = "specd") -> None:
        """Wait for a condition; on timeout, raise AssertionError with the unit's state and log."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                status = self.result("systemctl", "status", unit, "--no-pager", "-l", "-n0").stdout
                raise AssertionError(f"not so: {what}\n{status}\n{self.log(unit)[-4000:]}")
            time.sleep(0.05)

    def wait_until_shows(self, unit: str, **wanted: str) -> None:
        """Wait until all these properties have these values, at the same time."""

        def are_so() -> bool:
            out = self("systemctl", "show", unit, *(f"-p{name}" for name in wanted))
            return dict(line.split("=", 1) for line in out.splitlines()) == wanted

        self.wait_until(are_so, what=f"{unit}: {wanted}", unit=unit)

    def curl(self, path: str, *options: str, check: bool = True) -> str:
        url = path if "://" in path else f"http://127.0.0.1:11434{path}"
        return self("curl", "-sS", *options, url, check=check)


def _run(
    verb: str,
    folder: Path,
    *rest: str,
    check: bool = True,
    stdin: str = "",
    timeout_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [_SCRIPT, verb, folder, *rest],
        check=False,
        input=stdin,
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )
    if check and done.returncode != 0:
        error = subprocess.CalledProcessError(
            done.returncode, [verb, *rest], done.stdout, done.stderr
        )
        error.add_note(done.stderr or done.stdout)
        raise error
    return done


def _put(path: Path, contents: Contents) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(contents, Path):
        path.symlink_to(contents)
        return
    raw = contents.encode() if isinstance(contents, str) else contents
    path.write_bytes(raw)
    path.chmod(0o755 if raw.startswith(b"#!") else 0o644)


def documented(containing: str, **others: str) -> str:
    """Return the only block of docs/service.md with this text.  others: word → replacement."""
    blocks = (ROOT / "docs" / "service.md").read_text(encoding="utf-8").split("```")[1::2]
    [block] = [block for block in blocks if containing in block]
    for word, instead in others.items():
        block = block.replace(word, instead)
    return block.lstrip("\n")


# --------------------------------------------------------------------------- specd inside

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
CHECKOUT = "/opt/checkout"


@contextlib.contextmanager
def specd_container(
    folder: Path, *, files: Mapping[str, Contents] | None = None, **drop_in: str
) -> Iterator[SystemdContainer]:
    """Boot a container with specd in /opt/specd and the shipped units, users and folders.

    No unit is started.  files: as in `SystemdContainer.boot`.
    drop_in: settings of the service, as `systemctl edit` would write them.
    """
    python, binds = runnable()
    units = {name: (UNITS / name).read_text("utf-8") for name in ("specd.service", "specd.socket")}
    if drop_in:
        lines = [f'Environment="{name}={value}"' for name, value in drop_in.items()]
        units["specd.service.d/settings.conf"] = "\n".join(["[Service]", *lines, ""])
    # In /etc, because /usr is the host's.
    shipped = {
        f"/etc/{kind}/specd.conf": (UNITS / kind / "specd.conf").read_bytes()
        for kind in ("sysusers.d", "tmpfiles.d")
    }
    all_files = python | shipped | dict(files or {})
    with SystemdContainer.boot(folder, units=units, files=all_files, binds=binds) as container:
        container("ldconfig")
        container("systemd-sysusers", "specd.conf")
        container("systemd-tmpfiles", "--create", "specd.conf")
        yield container


def runnable() -> tuple[dict[str, Contents], dict[Path, str]]:
    """Return files and binds for `SystemdContainer.boot` that make /opt/specd/bin/specd run.

    It needs `ldconfig` first.  The checkout, its libraries and its interpreter may be in a home
    folder, which is hidden from the unit, so they are mounted elsewhere.
    """
    base = Path(sys.base_prefix).resolve()
    home = base if base.is_relative_to("/usr") else Path("/opt/python")
    folders = [Path(entry) for entry in sys.path if Path(entry).name == "site-packages"]
    libraries = {path: f"/opt/libraries/{n}" for n, path in enumerate(folders)}
    files: dict[str, Contents] = {
        "/etc/ld.so.conf": f"{home}/lib\ninclude /etc/ld.so.conf.d/*.conf\n",
        "/opt/specd/pyvenv.cfg": f"home = {home}/bin\n",
        "/opt/specd/bin/python": home / "bin" / VERSION,
        "/opt/specd/bin/specd": (
            "#!/opt/specd/bin/python\nimport sys\nfrom specd.cli import main\nsys.exit(main())\n"
        ),
        f"/opt/specd/lib/{VERSION}/site-packages/checkout.pth": "\n".join(
            [CHECKOUT, *libraries.values(), ""]
        ),
    }
    checkout = {ROOT / part: f"{CHECKOUT}/{part}" for part in ("specd", "configs", "systemd")}
    interpreter = {} if home == base else {base: str(home)}
    return files, checkout | libraries | interpreter
