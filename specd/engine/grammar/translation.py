"""Translation of a request's grammar for llguidance, and the limits of its compilation."""

from __future__ import annotations

import json

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from specd.core import Grammar, GrammarKind
from specd.engine.grammar.schema import as_llama_cpp
from specd.engine.grammar.thinking_tags import ThinkingTags, with_thinking
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
