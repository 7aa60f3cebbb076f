"""One request, end to end: resolve → pair → render → lease → stream → parse.

`generation.py` is the file to read first.
"""

from specd.generation.generation import Generation

__all__ = ["Generation"]
