"""The HTTP API.  Dialects do not import each other; `build_app` joins them."""

from specd.api.app import build_app

__all__ = ["build_app"]
