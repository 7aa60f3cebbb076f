"""`python -m specd.bench.peer_child PARENT COMMAND ...`: run a peer that dies with its parent.

PARENT is the parent's process id.  The kernel setting survives the exec of COMMAND.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from specd.ipc.parent_death import die_with_parent


def main(arguments: Sequence[str]) -> int:
    parent, *command = arguments
    die_with_parent()
    if os.getppid() != int(parent):
        return 1  # the parent died before the setting took effect
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
