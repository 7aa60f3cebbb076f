"""Creation of models from uploaded files or from another model (`/api/create`)."""

from specd.create.creator import Creator
from specd.create.request import CreateRequest

__all__ = ["CreateRequest", "Creator"]
