"""Models made here: from uploaded GGUFs or another model, with what the request adds to them."""

from specd.create.creator import Creator
from specd.create.request import CreateRequest

__all__ = ["CreateRequest", "Creator"]
