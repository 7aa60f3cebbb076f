"""Compressed bodies."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from specd.api.body import MAX_DECOMPRESSED_BYTES
from tests.api.fakes import client

_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd: Any = importlib.import_module(_MODULE)

BODY = json.dumps({"model": "plain", "messages": [{"role": "user", "content": "x" * 9999}]})


@pytest.mark.contract("openai.zstd")
@pytest.mark.parametrize("encoding,packed", [("zstd", zstd.compress), ("gzip", gzip.compress)])
async def test_a_compressed_body_is_read(encoding: str, packed: Callable[[bytes], bytes]) -> None:
    async with (
        client() as http,
        http.post(
            "/v1/chat/completions",
            data=packed(BODY.encode()),
            headers={"Content-Encoding": encoding},
        ) as reply,
    ):
        assert reply.status == 200, await reply.text()


async def test_a_corrupt_compressed_body_is_an_unexpected_end() -> None:
    async with (
        client() as http,
        http.post(
            "/v1/chat/completions",
            data=BODY.encode(),
            headers={"Content-Encoding": "zstd"},
        ) as reply,
    ):
        assert reply.status == 400
        assert (await reply.json())["error"]["message"] == "unexpected EOF"


@pytest.mark.parametrize("encoding,packed", [("zstd", zstd.compress), ("gzip", gzip.compress)])
async def test_an_incomplete_compressed_body_is_an_unexpected_end(
    encoding: str, packed: Callable[[bytes], bytes]
) -> None:
    """The part that arrived already decompresses to a complete JSON value."""
    whole = packed(BODY.encode() + b" " * 2**20)
    async with (
        client() as http,
        http.post(
            "/v1/chat/completions",
            data=whole[:-5],
            headers={"Content-Encoding": encoding},
        ) as reply,
    ):
        assert reply.status == 400
        assert (await reply.json())["error"]["message"] == "unexpected EOF"


@pytest.mark.contract("openai.zstd")
async def test_a_body_that_is_too_large_after_decompression_is_refused() -> None:
    bomb = zstd.compress(b" " * (MAX_DECOMPRESSED_BYTES + 1))
    async with (
        client() as http,
        http.post("/v1/chat/completions", data=bomb, headers={"Content-Encoding": "zstd"}) as reply,
    ):
        assert reply.status == 413
        assert (await reply.json())["error"]["message"] == "request body too large"
