"""Calls in Python syntax, `[f(a=1), g(b="x")]`: LFM2, Olmo 3, Llama 4.

The text is parsed with Python's parser and never run.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, calls_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import NotAToolCall, Reading, TextStream, expect, read_until

#: How often Python's parser is tried to find the end of a list.
_MOST_ENDS = 20
_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class TaggedPython:
    """Calls between tags.  open, close: tags around a list of calls, one call, or one per line."""

    open: str
    close: str
    is_only_leading: bool = False

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.open,)

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.open, self.close)

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        yield from expect(source, self.open)
        begin = source.at
        try:
            text, _ = yield from read_until(source, self.close)
        except NotAToolCall:
            # The end of the answer counts as the closing tag.
            text, source.at = source.text[begin:], len(source.text)
        source.spend(len(text))
        text = text.strip()
        return (
            calls_of(decode_json(text))
            if text.startswith(("{", "[{"))
            else python_calls(text, tools)
        )


@dataclass(frozen=True, slots=True)
class BarePython:
    """Calls as the whole answer; each must name a tool of the request."""

    openers: tuple[str, ...] = ("[",)
    is_only_leading: bool = True
    tokens: tuple[str, ...] = ()

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        begin = source.at
        ahead = yield from _name_of_first(source)
        if ahead not in tools.names:
            raise NotAToolCall
        for _ in range(_MOST_ENDS):
            # A bracket may be in a string, so the first one that completes a list is the end.
            yield from read_until(source, ")]")
            source.spend(source.at - begin)
            try:
                calls = python_calls(source.text[begin : source.at], tools)
            except NotAToolCall:
                continue
            if any(call.name not in tools.names for call in calls):
                raise NotAToolCall
            return calls
        raise NotAToolCall


def _name_of_first(source: TextStream) -> Reading[str]:
    yield from expect(source, "[")
    name, _ = yield from read_until(source, "(", "\n", "{", '"', ",", "]")
    return name.strip()


def python_calls(text: str, tools: Tools) -> list[ToolCall]:
    """Parse calls with plain values.  Raises NotAToolCall for any other text."""
    lines = text.strip()
    try:
        with warnings.catch_warnings():
            # Python keeps escapes that it does not know.
            warnings.simplefilter("ignore")
            body = ast.parse(lines).body
        calls = [call for line in body for call in _calls(line)]
        found = [_call(call, tools) for call in calls]
        # Python has values that JSON does not: infinities and lone surrogates.
        found = [replace(x, arguments=arguments_of(json.dumps(x.arguments))) for x in found]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAToolCall from error
    if not found:
        raise NotAToolCall
    return found


def _calls(line: ast.stmt) -> Iterator[ast.Call]:
    if not isinstance(line, ast.Expr):
        raise NotAToolCall
    many = isinstance(line.value, ast.List | ast.Tuple)
    for call in line.value.elts if many else [line.value]:  # type: ignore[attr-defined]
        if not isinstance(call, ast.Call):
            raise NotAToolCall
        yield call


def _call(call: ast.Call, tools: Tools) -> ToolCall:
    name = ast.unparse(call.func)
    parameters = tools.parameters(name)
    if len(call.args) > len(parameters):
        raise NotAToolCall
    arguments = {key: _value(arg) for key, arg in zip(parameters, call.args, strict=False)}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise NotAToolCall
        arguments[keyword.arg] = _value(keyword.value)
    return ToolCall(name=name, arguments=arguments)


def _value(node: ast.expr) -> object:
    """Return a plain value that JSON can represent."""
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return [_value(entry) for entry in entries]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(entry) for key, entry in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
    raise NotAToolCall


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NotAToolCall


LFM2 = TaggedPython("<|tool_call_start|>", "<|tool_call_end|>")
OLMO_3 = TaggedPython("<function_calls>", "</function_calls>")
LLAMA_4 = TaggedPython("<|python_start|>", "<|python_end|>")
