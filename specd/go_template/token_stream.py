"""A template's tokens with look-ahead, and the errors of its parsers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from specd.go_template import nodes
from specd.go_template.error import GoTemplateError
from specd.go_template.lexer import Kind, Lexer, Token
from specd.go_template.literals import quote

#: Limit for nested parentheses and blocks, far below the limit of Python's stack.
MAX_DEPTH: Final = 100


@dataclass
class TokenStream:
    """Shared state of the parsers of one text: tokens, and the templates defined so far.

    line: line of the last token read.
    """

    text: str
    functions: frozenset[str]
    definitions: dict[str, nodes.Block] = field(default_factory=dict)
    line: int = 1
    depth: int = 0

    def __post_init__(self) -> None:
        self._lexer = Lexer(self.text)
        self._ahead: list[Token] = []  # the next token is the last element

    def next(self) -> Token:
        if self._ahead:
            return self._ahead.pop()
        token = self._lexer.next()
        self.line = token.line
        return token

    def back(self, *tokens: Token) -> None:
        """Put tokens back, in the order in which they were read."""
        self._ahead.extend(reversed(tokens))

    def peek(self) -> Token:
        token = self.next()
        self.back(token)
        return token

    def next_word(self) -> Token:
        """Return the next token that is not a space."""
        token = self.next()
        while token.kind is Kind.SPACE:
            token = self.next()
        return token

    def peek_word(self) -> Token:
        token = self.next_word()
        self.back(token)
        return token

    def error(self, message: str) -> GoTemplateError:
        return GoTemplateError(f"template: :{self.line}: {message}")

    def define(self, name: str, body: nodes.Block) -> None:
        """Define a template; an empty definition may be replaced."""
        if not name:
            # The template's own name, which is empty in Ollama.
            raise self.error('multiple definition of template ""')
        if _is_empty(self.definitions.get(name, ())):
            self.definitions[name] = body
        elif not _is_empty(body):
            raise self.error(f"template: multiple definition of template {quote(name)}")

    def enter_nested(self, what: str) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"max {what} depth exceeded")


def _is_empty(body: nodes.Block) -> bool:
    return all(isinstance(node, nodes.Text) and not node.text.strip() for node in body)
