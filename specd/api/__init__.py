"""HTTP.  Dialects lie side by side and know nothing of each other; `build_app` joins them."""

from specd.api.app import build_app

__all__ = ["build_app"]
