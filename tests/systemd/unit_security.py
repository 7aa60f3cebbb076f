"""Measure the exposure of specd.service with `systemd-analyze security`: 0 to 10."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: systemd versions weigh differently: 1.4 with 252.
MOST = 1.5


def exposure(unit: Path = ROOT / "systemd" / "specd.service") -> float:
    """Return the overall figure.

    Raises OSError without systemd, RuntimeError if it prints no figure.
    """
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit.resolve())],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    if found is None:
        raise RuntimeError(done.stderr.strip() or "systemd-analyze printed no figure")
    return float(found[1])


def complaints(folder: Path = ROOT / "systemd") -> str:
    """Return the output of `systemd-analyze verify` for specd's units; "" if it has no warnings.

    /bin/true replaces the program, which need not be installed.  Raises OSError without systemd.
    """
    with tempfile.TemporaryDirectory() as scratch:
        units = [folder / "specd.service", folder / "specd.socket"]
        copies = [Path(scratch) / unit.name for unit in units]
        for unit, copy in zip(units, copies, strict=True):
            text = unit.read_text(encoding="utf-8")
            copy.write_text(re.sub(r"(?m)^ExecStart=\S+.*", "ExecStart=/bin/true", text), "utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=yes", *map(str, copies)],
            capture_output=True,
            text=True,
            check=False,
        )
    said = (done.stdout + done.stderr).strip()
    return said or (f"exit status {done.returncode}" if done.returncode else "")


def main() -> int:
    if shutil.which("systemd-analyze") is None:
        print("systemd-analyze is not installed")
        return 2
    figure, said = exposure(), complaints()
    print(f"specd.service: exposure {figure} of 10 (at most {MOST} is wanted)")
    print(said or "specd.service, specd.socket: no warnings")
    return int(figure > MOST or bool(said))


if __name__ == "__main__":
    sys.exit(main())
