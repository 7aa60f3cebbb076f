"""The first moment of a peer's process: it is tied to its parent's life, then becomes the server.

`python -m specd.bench.peer_child PARENT COMMAND ...`; the tie outlasts the change of programs.
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
        return 1  # it died before the kernel knew
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
