"""Translation of a request's grammar for llguidance, and the limits of its compilation.

Thinking before the answer is free text between two tags.  A tag is text, or control tokens, or both
in turn.  No text can spell a control token, because such a token has no bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from specd.core import Grammar, GrammarKind, TokenId
from specd.engine.grammar.schema import as_llama_cpp
from specd.errors import InvalidRequest

#: Most bytes of a grammar; a schema of a hundred fields has a few thousand.
MAX_TEXT_BYTES = 256 * 1024

_NAMES = {
    GrammarKind.JSON: "JSON",
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.GBNF: "GBNF grammar",
    GrammarKind.REGEX: "regular expression",
}
_MAX_ERROR_LENGTH = 400

# Whitespace between two JSON tokens, at most once, as in llama.cpp: otherwise a model could write
# blanks or line ends without end.
_WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
_JSON_OPTIONS = {
    # Ignore what cannot be enforced, as llama.cpp and Ollama do.
    "lenient": True,
    "whitespace_pattern": _WHITESPACE,
    "json_allow_general_unicode_escapes": True,
}

#: no_forcing allows every tokenization of a prescribed text, not only the tokenizer's own.  Then a
#: mask and the check of a single token agree, and the tokenizer is never called.
_OPTIONS = '%llguidance {"no_forcing": true}\n'
_TERMINALS = r"""
text: /(?s:.+)/
space: /[ \t\r\n]{1,4}/
"""


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """The tags around thinking.

    opening: empty if the prompt already contains it.
    control_tokens: those of the vocabulary without end tokens; thinking may contain them.
    """

    opening: tuple[str | TokenId, ...]
    closing: tuple[str | TokenId, ...]
    control_tokens: tuple[TokenId, ...] = ()


def translate(grammar: Grammar, tags: ThinkingTags | None = None) -> str:
    """Return the grammar as llguidance's JSON.  tags: those around thinking before the answer.

    Raises InvalidRequest if the text is not valid for its kind.
    """
    if len(grammar.text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise InvalidRequest(
            f"the {_NAMES[grammar.kind]} is larger than {MAX_TEXT_BYTES // 1024} KiB"
        )
    match grammar.kind:
        case GrammarKind.JSON:
            body = _schema({"type": "object"})
        case GrammarKind.JSON_SCHEMA:
            try:
                body = _schema(_parsed(grammar))
            except RecursionError as error:
                raise grammar_error(grammar, "it is nested too deeply") from error
        case GrammarKind.GBNF:
            body = {"lark_grammar": _lark(grammar)}
        case GrammarKind.REGEX:
            body = json.loads(LLMatcher.grammar_from_regex(grammar.text))["grammars"][0]
    return json.dumps(
        {"grammars": [{"lark_grammar": with_thinking(tags)}, {**body, "name": "answer"}]}
    )


def compile_matcher(
    grammar: Grammar, tokenizer: LLTokenizer, tags: ThinkingTags | None = None
) -> LLMatcher:
    """Return a matcher at the start of the grammar.

    The limits are in units of work, so all machines refuse the same grammars.
    Raises InvalidRequest with the library's message.
    """
    limits = LLParserLimits(
        # A state takes 2 kB, so one answer's grammar takes at most 100 MB.
        max_lexer_states=50_000,
        # Without precomputation, the steps do the same work when they need it, under a limit.
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, translate(grammar, tags), log_level=0, limits=limits)
    if matcher.is_error():
        raise grammar_error(grammar, matcher.get_error())
    return matcher


def grammar_error(grammar: Grammar, reason: str) -> InvalidRequest:
    """Return the error that a grammar is invalid, with the reason."""
    return InvalidRequest(f"invalid {_NAMES[grammar.kind]}: {short_error(reason)}")


def short_error(error: str) -> str:
    """Return the library's message without the state that it appends in tags."""
    return error.partition("\n<")[0].strip()[:_MAX_ERROR_LENGTH]


def _parsed(grammar: Grammar) -> dict[str, object]:
    try:
        schema = json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise grammar_error(grammar, str(error)) from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise grammar_error(grammar, "it must be an object")
    return schema


def _schema(schema: dict[str, object]) -> dict[str, object]:
    return {"json_schema": {**as_llama_cpp(schema), "x-guidance": _JSON_OPTIONS}}


def _lark(grammar: Grammar) -> str:
    try:
        return gbnf_to_lark(grammar.text)
    except Exception as error:  # the library raises no narrower one
        raise grammar_error(grammar, str(error)) from error


def with_thinking(tags: ThinkingTags | None) -> str:
    """Return a grammar around the one named `answer`; tags None: without thinking."""
    if tags is None:
        return _OPTIONS + "start: @answer"
    thought, rules = _thinking_rules(tags)
    before = f"{_sequence(tags.opening)} {thought} space?".strip()
    start = f"({before})? @answer" if tags.opening else f"{before} @answer"
    return "\n".join([f"{_OPTIONS}start: {start}", *rules, _TERMINALS])


def _thinking_rules(tags: ThinkingTags) -> tuple[str, list[str]]:
    """Return an expression that ends with the first closing tag, and the rules that it needs."""
    first, *others = tags.closing
    control_tokens = [token for token in tags.control_tokens if token != first]
    control = f"<[{','.join(_ranges(control_tokens))}]>" if control_tokens else ""
    if isinstance(first, str):
        tag = json.dumps(first)
        rules = [f"last[suffix={tag}]: /(?s:.*)/"]
        if control:
            # Text before a control token must not contain the tag either, or thinking would go on.
            rules += ["open: OPEN", f"OPEN: /(?s:.+)/ & ~(/(?s:.*)/ {tag} /(?s:.*)/)"]
        return f"{f'(open? {control})* ' if control else ''}last {_sequence(others)}", rules
    rules = [f"rest: ({control} text?)*" if control else 'rest: ""']
    thought, close = "text? rest", _sequence(tags.closing)
    if others and isinstance(others[0], str):
        # Harmony: each message has a name after the same control token, and one is the answer's.
        rules += ["other: OTHER", f"OTHER: /(?s:.+)/ & ~{json.dumps(others[0])}"]
        thought += f" (<[{first}]> other? rest)*"
    return f"{thought} {close}", rules


def _sequence(parts: Sequence[str | TokenId]) -> str:
    return " ".join(json.dumps(x) if isinstance(x, str) else f"<[{x}]>" for x in parts)


def _ranges(tokens: Sequence[TokenId]) -> list[str]:
    """Return the ids as ranges, since most of a vocabulary's control tokens are consecutive."""
    in_rows = groupby(enumerate(sorted(tokens)), key=lambda pair: pair[1] - pair[0])
    rows = [[token for _, token in row] for _, row in in_rows]
    return [f"{row[0]}-{row[-1]}" for row in rows]
