"""Schemas and patterns of exponential size, over a real engine, during another client's answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.sandbox import Sandbox
from specd.errors import InvalidRequest
from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, write_llama

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.native,
    pytest.mark.system,
    pytest.mark.timeout(300),
]


def nested(n: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubled(n: int) -> dict[str, object]:
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
    return {"$defs": twice | {f"d{n}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def meshed(n: int) -> dict[str, object]:
    def ref(i: int) -> dict[str, str]:
        return {"$ref": f"#/$defs/d{i % n}"}

    mesh = {
        f"d{i}": {"type": "object", "properties": {"x": ref(i + 1), "y": ref(7 * i + 3)}}
        for i in range(n)
    }
    return {"$defs": mesh, "$ref": "#/$defs/d0"}


def matching(pattern: str) -> dict[str, object]:
    return {"type": "string", "pattern": pattern}


SCHEMAS: dict[str, Any] = {
    "itself": {"$ref": "#"},
    "in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "twice itself, forty times": doubled(40),
    "a mesh": meshed(300),
    "deep": nested(60),
    "a long enum": {"enum": [f"value number {i} of many" for i in range(7000)]},
    "a wide oneOf": {
        "oneOf": [
            {"type": "object", "properties": {f"p{i}": {}, f"q{i}": {}}, "required": [f"p{i}"]}
            for i in range(1500)
        ]
    },
    "allOf of patterns": {
        "allOf": [matching(f"^(a|b)*{'ab'[i % 2]}(a|b){{{i}}}$") for i in range(1, 14)]
    },
    "a million million million": matching("^((a{1,1000}){1,1000}){1,1000}$"),
    "a million": matching("^(a{1,1000}){1,1000}$"),
    "alternatives": matching("^(a|aa|aaa|b{1,300}){1,300}c{1,500}$"),
    "nested quantifiers": matching("^(a+)+$"),
    "two to the two hundred states": matching("^[ab]*a[ab]{200}$"),
    "letters of all scripts": matching("^[\\p{L}\\p{N}]{1,500}([\\p{Lu}]|[\\p{Ll}]){500}$"),
    "a long tuple": {"type": "array", "prefixItems": [{"type": "integer"}] * 5000},
    "a large multiple": {"type": "integer", "multipleOf": 99999989},
    "many properties": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(5000)},
    },
    "many patterns of properties": {
        "type": "object",
        "patternProperties": {f"^(a|b){{{i}}}[a-z]*{i}$": {} for i in range(60)},
    },
    "a large constant": {"const": {"a": [list(range(200))] * 200}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    folder = tmp_path_factory.mktemp("grammars")
    OllamaStore(folder / "models").add("m", weights=write_llama(folder / "m.gguf"))
    async with running(folder, OLLAMA_NUM_PARALLEL="3", OLLAMA_CONTEXT_LENGTH="512") as daemon:
        yield daemon


@pytest.mark.parametrize("name", SCHEMAS)
async def test_a_schema_is_obeyed_or_refused_and_another_answer_continues(
    daemon: Daemon, name: str
) -> None:
    told = 0

    async def neighbour() -> None:
        nonlocal told
        while True:
            async with daemon.generate("x", options={"num_predict": 400}) as answer:
                async for line in answer.content:
                    told += 1
                    assert "error" not in json.loads(line)

    beside = asyncio.ensure_future(neighbour())
    while not told:
        await asyncio.sleep(0.01)
        assert not beside.done()
    asked = {"format": SCHEMAS[name], "stream": False, "options": {"num_predict": 40}}
    before = told
    async with asyncio.timeout(120), daemon.generate("a", **asked) as reply:
        answer = await reply.json()
    assert not beside.done()
    assert told > before
    beside.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beside
    if reply.status == 200:
        assert answer["done"] is True
    else:
        assert reply.status == 400
        assert answer["error"].startswith("invalid JSON schema: ")
    # The next valid schema is served.
    asked["format"] = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    async with asyncio.timeout(60), daemon.generate("a", **asked) as reply:
        assert reply.status == 200


@pytest.mark.parametrize(
    "kind, text",
    [
        (GrammarKind.REGEX, "((a{1,1000}){1,1000}){1,1000}"),
        (GrammarKind.REGEX, "(" * 5000),
        (GrammarKind.REGEX, "(?:a|b)*a" + "(?:a|b)" * 300),
        (GrammarKind.REGEX, "[\\p{L}]{60000}"),
        (GrammarKind.GBNF, "root ::= root"),
        (GrammarKind.GBNF, "root ::= a\na ::= b\nb ::= a"),
        (GrammarKind.GBNF, "root ::= root root root | root root"),
        (GrammarKind.GBNF, 'root ::= ("a"{1,1000}){1,1000}'),
        (GrammarKind.GBNF, "root ::= " + "(" * 3000 + '"a"' + ")" * 3000),
        (
            GrammarKind.GBNF,
            "\n".join(f"r{i} ::= r{i + 1} r{i + 1} | r{i + 2}" for i in range(3000)),
        ),
        (GrammarKind.GBNF, 'root ::= "' + "x" * 200_000 + '"'),
        (GrammarKind.GBNF, "root ::= [^\0-\U0010fffe]*"),
    ],
)
async def test_regular_expressions_and_gbnf_grammars_have_the_same_limits(
    kind: GrammarKind, text: str
) -> None:
    sandbox = Sandbox()
    try:
        with contextlib.suppress(InvalidRequest):
            await asyncio.to_thread(sandbox.check, Grammar(kind=kind, text=text))
        # The next is compiled, by this process or by its successor.
        await asyncio.to_thread(sandbox.check, Grammar(kind=GrammarKind.REGEX, text="a+"))
    finally:
        sandbox.workers.close()
