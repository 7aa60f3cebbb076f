"""The entry points that the daemon starts as processes of their own.

`python -m specd.engine --fd N`: an engine, with one end of a socketpair as fd N.
`python -m specd.engine quantize ...`: see llama/quantizer.py.
`python -m specd.engine devices`: see devices.py.
"""

from __future__ import annotations

import argparse
import sys


def _main() -> int:
    if sys.argv[1:2] == ["quantize"]:
        from specd.engine.llama import quantizer  # noqa: PLC0415 - other entry points do not need it

        return quantizer.main(sys.argv[2:])
    if sys.argv[1:] == ["devices"]:
        from specd.engine.llama.backends import is_cpu_only  # noqa: PLC0415 - as above

        if is_cpu_only():  # answer fast, without the library: the daemon waits
            sys.stdout.write("[]\n")
            return 0
        from specd.engine import devices  # noqa: PLC0415 - loads the library

        return devices.main()
    from specd.engine.worker import main  # noqa: PLC0415 - as above

    parser = argparse.ArgumentParser(prog="specd.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    return main(parser.parse_args().fd)


sys.exit(_main())
