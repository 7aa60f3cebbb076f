"""Multipart forms over HTTP: the fields that are read, and errors before the end."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specd.api.body_budget import MemoryBudget, NoRoom
from specd.api.form import MAX_FORM_BYTES, MAX_PARTS
from tests.api.fakes import FakeGeneration, client

PATH = "/v1/audio/transcriptions"
FORM_DATA = "multipart/form-data; boundary=b"
SOUND = b"ID3" + bytes(range(256)) * 300  # longer than the chunks in which a part is read
MIB = 2**20
Http = TestClient[Any, Any]


def part(name: str, content: bytes, filename: str = "", **headers: str) -> bytes:
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename else "")
    lines = {"Content-Disposition": disposition} | headers
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"--b\r\n{head}\r\n".encode() + content + b"\r\n"


MODEL, FILE = part("model", b"able"), part("file", SOUND, "a.mp3")
END = b"--b--\r\n"


async def post(http: Http, body: Any, content_type: str = FORM_DATA) -> tuple[int, str]:
    """Return the status and the error message."""
    headers = {"Content-Type": content_type}
    body = io.BytesIO(body) if isinstance(body, bytes) else body
    async with http.post(PATH, data=body, headers=headers) as reply:
        return reply.status, (await reply.json()).get("error", {}).get("message", "")


async def heard(body: bytes, **query: str) -> list[bytes]:
    """Return the files that the generation request contains."""
    generation = FakeGeneration()
    async with client(generation) as http:
        headers = {"Content-Type": FORM_DATA}
        async with http.post(PATH, data=body, headers=headers, params=query) as reply:
            assert reply.status == 200, await reply.text()
    prompt: Any = generation.requests[0].prompt
    return [image for message in prompt.messages for image in message.images]


@pytest.mark.parametrize("value", [b"", b"utf-8", b"no-such-charset", b"x" * 100, b"\xff"])
async def test_a_field_called_charset_is_a_field_as_any_other(value: bytes) -> None:
    assert await heard(part("_charset_", value) + MODEL + FILE + END) == [SOUND]


async def test_a_file_has_the_bytes_that_were_sent() -> None:
    content = SOUND + b"\r\n--a\r\n\r\n-b\r--b\n--b--\r\n"  # much like a boundary
    body = b"preamble\r\n" + MODEL + part("file", content, "a.mp3") + END + b"epilogue"
    assert await heard(body) == [content]


async def test_the_first_of_several_parts_with_one_name_counts() -> None:
    assert await heard(MODEL + part("model", b"absent") + FILE + part("file", b"ID3", "b") + END)


async def test_unknown_parts_are_dropped() -> None:
    other = part("other", b"x" * MIB, "x") + part("file", b"a field of that name")
    budget = MemoryBudget(MIB // 2)
    async with client(FakeGeneration(), budget=budget) as http:
        assert await post(http, MODEL + other + FILE + END) == (200, "")
        assert budget.free_bytes == MIB // 2


async def test_a_field_may_stand_in_the_url() -> None:
    assert await heard(FILE + END, model="able") == [SOUND]


@pytest.mark.parametrize(
    "body, content_type, reason",
    [
        (MODEL, "application/json", "request Content-Type isn't multipart/form-data"),
        (MODEL, "multipart/mixed; boundary=b", "request Content-Type isn't multipart/form-data"),
        (MODEL + END, "multipart/form-data", "boundary"),
        (MODEL + END, "multipart/form-data; boundary=other", "boundary"),
        (MODEL + END, f"multipart/form-data; boundary={'b' * 71}", "boundary"),
        (b"", FORM_DATA, "boundary"),
        (MODEL + FILE, FORM_DATA, "the end is missing"),
        ((MODEL + FILE)[:-9], FORM_DATA, "the end is missing"),
        (b"--b\r\n", FORM_DATA, "the end is missing"),
        (b"x" * MIB, FORM_DATA, "boundary"),
        (MODEL + b"--b\r\nno header\r\n\r\nx\r\n" + END, FORM_DATA, "the parts"),
        (b"--b\r\n" + b"A: b\r\n" * 2000 + b"\r\nx\r\n" + END, FORM_DATA, "the parts"),
        (b"--b\r\nA: " + b"b" * MIB + b"\r\n\r\nx\r\n" + END, FORM_DATA, "the parts"),
        (
            part("x", b"", **{"Content-Type": "multipart/mixed; boundary=c"}) + END,
            FORM_DATA,
            "a part is a multipart body",
        ),
        (MODEL * (MAX_PARTS + 1) + END, FORM_DATA, "more than 1000 parts"),
    ],
)
async def test_an_invalid_form_has_an_error_text(
    body: bytes, content_type: str, reason: str
) -> None:
    async with client() as http:
        status, words = await post(http, body, content_type)
        assert (status, words[:32]) == (400, "failed to parse multipart form: ")
        assert reason in words
        async with http.get("/v1/models") as after:
            assert after.status == 200


@pytest.mark.filterwarnings("ignore::aiohttp.BadContentDispositionHeader")
@pytest.mark.filterwarnings("ignore::aiohttp.BadContentDispositionParam")
@pytest.mark.parametrize("disposition", ["", "form-data", "(;)", "form-data; name", 'f; name=";"'])
async def test_a_part_without_a_name_is_dropped(disposition: str) -> None:
    nameless = f"--b\r\nContent-Disposition: {disposition}\r\n\r\nx\r\n".encode()
    assert await heard(nameless + MODEL + FILE + END) == [SOUND]


async def test_a_form_that_is_too_long_is_refused_when_that_is_seen() -> None:
    body = MODEL + part("file", bytes(MAX_FORM_BYTES), "a.wav") + END
    async with client() as http:
        assert await post(http, body) == (413, "request body too large")


async def test_a_form_of_unknown_length_is_refused_once_it_is_too_long() -> None:
    n_sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal n_sent
        yield MODEL + b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        while True:
            yield bytes(2**16)
            n_sent += 2**16

    async with client() as http:
        try:
            answer = await post(http, endless())
        except ConnectionError:  # the daemon may close the connection before its answer is read
            answer = (413, "request body too large")
    assert answer == (413, "request body too large")
    assert n_sent < MAX_FORM_BYTES + 16 * MIB


async def test_a_sound_has_its_share_of_the_room_until_it_is_answered() -> None:
    budget, waiting = MemoryBudget(MIB), asyncio.Event()
    body = MODEL + part("file", b"ID3" + bytes(MIB // 2), "a.mp3") + END
    async with client(FakeGeneration([waiting]), budget=budget) as http:
        first = asyncio.ensure_future(post(http, body))
        await waiting.wait()
        assert budget.free_bytes < MIB // 2
        status, words = await post(http, body)
        assert (status, words) == (503, str(NoRoom()))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(cuts=st.lists(st.integers(0, 2000), max_size=6), content=st.binary(max_size=300))
async def test_a_form_may_arrive_in_any_pieces(cuts: list[int], content: bytes) -> None:
    body = MODEL + part("file", b"ID3" + content, "a.mp3") + END
    places = [0, *sorted(cut % len(body) for cut in cuts), len(body)]

    async def pieces() -> AsyncIterator[bytes]:
        for begin, end in itertools.pairwise(places):
            if begin < end:
                yield body[begin:end]
                await asyncio.sleep(0)

    generation = FakeGeneration()
    async with client(generation) as http:
        status, words = await post(http, pieces())
    expected = b"ID3" + content
    assert (status, words) == (200, "")
    prompt: Any = generation.requests[0].prompt
    assert prompt.messages[-1].images == (expected,)
