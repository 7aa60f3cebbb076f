"""The error of Go templates, with Go's texts."""

from __future__ import annotations

from specd.errors import SpecdError


class GoTemplateError(SpecdError):
    """A template that does not parse, or that fails on its data."""
