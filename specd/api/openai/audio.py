"""`POST /v1/audio/transcriptions`: refused, and the caller is told so."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from specd.errors import NotImplementedHere

#: Ollama's limit on the form, and what is read of it before the answer.
MAX_FORM_BYTES: Final = 25 * 2**20


async def transcriptions(request: web.Request) -> web.StreamResponse:
    """Read the form and drop it: many clients look for an answer only once they have sent all."""
    n_read = 0
    async for chunk in request.content.iter_any():
        n_read += len(chunk)
        if n_read > MAX_FORM_BYTES:
            break
    raise NotImplementedHere(
        "audio transcription is not supported by specd;"
        " a model that hears takes input_audio at /v1/chat/completions"
    )
