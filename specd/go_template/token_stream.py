"""A template's tokens with look-ahead, and the errors of whoever reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from specd.go_template import nodes
from specd.go_template.error import GoTemplateError
from specd.go_template.lexer import Kind, Lexer, Token
from specd.go_template.literals import quote

#: Parentheses and blocks inside each other; far below what Python's own stack can hold.
MAX_DEPTH: Final = 100


@dataclass
class TokenStream:
    """What the trees of one text share: tokens with look-ahead, and the templates defined so far.

    line: of the last token that was cut.
    """

    text: str
    functions: frozenset[str]
    definitions: dict[str, nodes.Block] = field(default_factory=dict)
    line: int = 1
    depth: int = 0

    def __post_init__(self) -> None:
        self._lexer = Lexer(self.text)
        self._ahead: list[Token] = []  # the next one last

    def next(self) -> Token:
        if self._ahead:
            return self._ahead.pop()
        token = self._lexer.next()
        self.line = token.line
        return token

    def back(self, *tokens: Token) -> None:
        """Return tokens, in the order in which they were read."""
        self._ahead.extend(reversed(tokens))

    def peek(self) -> Token:
        token = self.next()
        self.back(token)
        return token

    def next_word(self) -> Token:
        """The next token that is no space."""
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
        """An empty definition gives way to another one."""
        if not name:
            # The name of the whole template: Ollama's has none.
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
