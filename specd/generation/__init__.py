"""One request, end to end: resolve → pair → render → lease → stream → parse.

Read `generation.py` first.
"""

from specd.generation.catalog import Catalog
from specd.generation.generation import Generation

__all__ = ["Catalog", "Generation"]
