"""`python -m specd.engine --fd N`: started by the daemon, with one end of a socketpair as fd N."""

from __future__ import annotations

import argparse
import sys

from specd.engine.worker import main

parser = argparse.ArgumentParser(prog="specd.engine", description=__doc__)
parser.add_argument("--fd", type=int, required=True, help="inherited socket to the daemon")
sys.exit(main(parser.parse_args().fd))
