"""The entry points that the daemon starts as processes of their own.

`python -m specd.engine --fd N`: an engine, with one end of a socketpair as fd N.
`python -m specd.engine quantize ...`: see llama/quantizer.py.
`python -m specd.engine devices`: see devices.py.
`python -m specd.engine simulate`: see simulation.py.
"""

from __future__ import annotations

import argparse
import sys


def _main() -> int:
    if sys.argv[1:2] == ["quantize"]:
        from specd.engine.llama import quantizer  # noqa: PLC0415 - other entry points do not need it

        return quantizer.main(sys.argv[2:])
    if sys.argv[1:] == ["devices"]:
        from specd.engine import devices  # noqa: PLC0415 - as above

        return devices.main()
    if sys.argv[1:] == ["simulate"]:
        from specd.engine.llama import import_bindings_alone  # noqa: PLC0415 - as above

        import_bindings_alone()
        from specd.engine import simulation  # noqa: PLC0415 - loads the library

        return simulation.main()
    from specd.engine.worker import main  # noqa: PLC0415 - as above

    parser = argparse.ArgumentParser(prog="specd.engine", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
    return main(parser.parse_args().fd)


sys.exit(_main())
