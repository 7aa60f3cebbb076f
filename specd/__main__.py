"""`python -m specd` is `specd`."""

from __future__ import annotations

from specd.cli import main

if __name__ == "__main__":
    main()
