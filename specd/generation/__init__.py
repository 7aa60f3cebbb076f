"""One request, end to end: resolve → pair → render → lease → stream → parse.

Read `generation.py` first.
"""

from specd.generation.generation import Generation

__all__ = ["Generation"]
