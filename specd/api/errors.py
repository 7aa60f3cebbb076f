"""HTTP statuses of errors; the dialects add their own bodies."""

from __future__ import annotations

from typing import Final

from specd import errors
from specd.api.lookup import CloudDisabled


class BodyTooLarge(errors.SpecdError):
    pass


class Unauthorized(errors.SpecdError):
    """A missing or a wrong API key; the text does not tell which."""

    def __init__(self) -> None:
        super().__init__("unauthorized: a valid API key is required")


# The first row that matches decides.
_STATUSES: Final[tuple[tuple[type[errors.SpecdError], int], ...]] = (
    (errors.InvalidOption, 500),  # Ollama's choice
    (errors.EmbeddingsUnsupported, 501),
    (errors.InvalidRequest, 400),
    (errors.ModelNotFound, 404),
    (Unauthorized, 401),
    (CloudDisabled, 403),
    (BodyTooLarge, 413),
    (errors.Cancelled, 499),
    (errors.Unavailable, 503),
)


def status_of(error: errors.SpecdError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
