"""Calls in Python syntax, `[f(a=1), g(b="x")]`: LFM2, Olmo 3, Llama 4.

The text is parsed with Python's parser and never run.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, calls_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import NotAToolCall, Reading, TextStream, expect, read_until
from specd.prompt.tools.tool_format import ToolFormat

#: How often Python's parser is tried to find the end of a list.
_MAX_ENDS = 20
_NAMES = {"true": True, "false": False, "null": None}


def _tagged(opener: str, close: str) -> ToolFormat:
    """Return the format with tags around a list of calls, one call, or one per line."""
    return ToolFormat((opener,), partial(_read_tagged, opener, close), tokens=(opener, close))


def _read_tagged(
    opener: str, close: str, source: TextStream, tools: Tools
) -> Reading[list[ToolCall]]:
    yield from expect(source, opener)
    begin = source.at
    try:
        text, _ = yield from read_until(source, close)
    except NotAToolCall:
        # The end of the answer counts as the closing tag.
        text, source.at = source.text[begin:], len(source.text)
    source.spend(len(text))
    text = text.strip()
    if text.startswith(("{", "[{")):
        return calls_of(decode_json(text))
    return _python_calls(text, tools)


def _read_bare(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    """Read calls that are the whole answer; each must name a tool of the request."""
    begin = source.at
    ahead = yield from _name_of_first(source)
    if ahead not in tools.names:
        raise NotAToolCall
    for _ in range(_MAX_ENDS):
        # A bracket may be in a string, so the first one that completes a list is the end.
        yield from read_until(source, ")]")
        source.spend(source.at - begin)
        try:
            calls = _python_calls(source.text[begin : source.at], tools)
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


def _python_calls(text: str, tools: Tools) -> list[ToolCall]:
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
    is_list = isinstance(line.value, ast.List | ast.Tuple)
    for call in line.value.elts if is_list else [line.value]:  # type: ignore[attr-defined]
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


LFM2 = _tagged("<|tool_call_start|>", "<|tool_call_end|>")
OLMO_3 = _tagged("<function_calls>", "</function_calls>")
LLAMA_4 = _tagged("<|python_start|>", "<|python_end|>")
BARE_PYTHON = ToolFormat(("[",), _read_bare, is_only_leading=True)
