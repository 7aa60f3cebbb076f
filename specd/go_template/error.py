"""What is wrong with a Go template, in Go's own words."""

from __future__ import annotations

from specd.errors import SpecdError


class GoTemplateError(SpecdError):
    """A template that does not parse, or that fails on what it is given."""
