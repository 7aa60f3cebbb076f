"""Parser of pipelines and expressions, by Go's rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from specd.errors import GoTemplateError
from specd.go_template import nodes
from specd.go_template.lexer import Kind, Lexer, Token
from specd.go_template.literals import character, number, quote, unquote

#: Limit for nested parentheses and blocks, far below the limit of Python's stack.
MAX_DEPTH: Final = 100
_OPERANDS: Final = frozenset(
    {
        Kind.BOOL,
        Kind.CHARACTER,
        Kind.DOT,
        Kind.FIELD,
        Kind.IDENTIFIER,
        Kind.NUMBER,
        Kind.NIL,
        Kind.RAW_STRING,
        Kind.STRING,
        Kind.VARIABLE,
        Kind.LEFT_PAREN,
    }
)
_LITERALS: Final = (nodes.Dot, nodes.Nil, nodes.Literal)


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


class Expressions:
    """Base of the parser, without statements.  `_action_line`: 0 outside an action."""

    def __init__(self, source: TokenStream) -> None:
        self._source = source
        self._variables = ["$"]
        self._action_line = 0

    def _pipeline(self, context: str, end: Kind) -> nodes.Pipe:
        source = self._source
        start = source.peek_word()
        declared, assigns = self._declarations(context)
        commands = list[nodes.Command]()
        while (token := source.next_word()).kind is not end:
            if token.kind not in _OPERANDS:
                raise self._unexpected(token, context)
            source.back(token)
            commands.append(self._command())
        if not commands:
            raise source.error(f"missing value for {context}")
        for stage, command in enumerate(commands[1:], 2):
            if isinstance(command.args[0], _LITERALS):
                raise source.error(f"non executable command in pipeline stage {stage}")
        return nodes.Pipe(start.pos, tuple(declared), assigns, tuple(commands))

    def _declarations(self, context: str) -> tuple[list[nodes.Variable], bool]:
        """Parse `$x :=`, `$x =`, and for a range `$i, $x :=`."""
        source, declared = self._source, list[nodes.Variable]()
        while (variable := source.peek_word()).kind is Kind.VARIABLE:
            source.next()
            adjacent = source.peek()
            following = source.peek_word()
            is_comma = following.kind is Kind.CHAR and following.text == ","
            if not is_comma and following.kind not in {Kind.ASSIGN, Kind.DECLARE}:
                if adjacent.kind is Kind.SPACE:
                    source.back(adjacent)
                source.back(variable)
                break
            source.next_word()
            declared.append(nodes.Variable(variable.pos, (variable.text,)))
            self._variables.append(variable.text)
            if not is_comma:
                return declared, following.kind is Kind.ASSIGN
            if context != "range" or len(declared) > 1:
                raise source.error(f"too many declarations in {context}")
            if source.peek_word().kind not in {Kind.VARIABLE, Kind.RIGHT, Kind.RIGHT_PAREN}:
                raise source.error("range can only initialize variables")
        return declared, False

    def _command(self) -> nodes.Command:
        source, args = self._source, list[nodes.Operand]()
        start = source.peek_word().pos
        while True:
            source.peek_word()
            if (operand := self._operand()) is not None:
                args.append(operand)
            token = source.next()
            if token.kind is Kind.SPACE:
                continue
            if token.kind in {Kind.RIGHT, Kind.RIGHT_PAREN}:
                source.back(token)
            elif token.kind is not Kind.PIPE:
                raise self._unexpected(token, "operand")
            break
        if not args:
            raise source.error("empty command")
        return nodes.Command(start, tuple(args))

    def _operand(self) -> nodes.Operand | None:
        source, node = self._source, self._term()
        first = source.peek()
        if node is None or first.kind is not Kind.FIELD:
            return node
        names = list[str]()
        while source.peek().kind is Kind.FIELD:
            names.append(source.next().text[1:])
        if isinstance(node, nodes.Field | nodes.Variable):
            return type(node)(first.pos, (*node.names, *names))
        if isinstance(node, _LITERALS):
            raise source.error(f"unexpected . after term {quote(str(node))}")
        return nodes.Chain(first.pos, node, tuple(names))

    def _term(self) -> nodes.Operand | None:
        source = self._source
        token = source.next_word()
        pos, text = token.pos, token.text
        match token.kind:
            case Kind.IDENTIFIER:
                if text not in source.functions:
                    raise source.error(f"function {quote(text)} not defined")
                return nodes.Function(pos, text)
            case Kind.VARIABLE:
                if text not in self._variables:
                    raise source.error(f"undefined variable {quote(text)}")
                return nodes.Variable(pos, (text,))
            case Kind.FIELD:
                return nodes.Field(pos, (text[1:],))
            case Kind.LEFT_PAREN:
                source.enter_nested("expression")
                pipe = self._pipeline("parenthesized pipeline", Kind.RIGHT_PAREN)
                source.depth -= 1
                return pipe
        literal = self._literal(token)
        if literal is None:
            source.back(token)
        return literal

    def _literal(self, token: Token) -> nodes.Operand | None:
        pos, text = token.pos, token.text
        match token.kind:
            case Kind.DOT:
                return nodes.Dot(pos, text)
            case Kind.NIL:
                return nodes.Nil(pos, text)
            case Kind.BOOL:
                return nodes.Literal(pos, text, text == "true")
            case Kind.STRING | Kind.RAW_STRING:
                return nodes.Literal(pos, text, self._unquoted(text))
            case Kind.CHARACTER | Kind.NUMBER:
                meaning = character if token.kind is Kind.CHARACTER else number
                try:
                    return nodes.Literal(pos, text, meaning(text))
                except ValueError as error:
                    raise self._source.error(str(error)) from None
        return None

    # --------------------------------------------------------------- errors

    def _unquoted(self, literal: str) -> str:
        try:
            return unquote(literal)
        except ValueError as error:
            raise self._source.error(str(error)) from None

    def _expect(self, kind: Kind, context: str) -> Token:
        token = self._source.next_word()
        if token.kind is not kind:
            raise self._unexpected(token, context)
        return token

    def _unexpected(self, token: Token, context: str) -> GoTemplateError:
        if token.kind is not Kind.ERROR:
            return self._source.error(f"unexpected {_quote_token(token)} in {context}")
        started = ""
        if self._action_line not in {0, token.line}:
            # Avoid "unclosed action in action ...".
            where = " started at" if token.text.endswith(" action") else " in action started at"
            started = f"{where} :{self._action_line}"
        return self._source.error(token.text + started)


def _quote_token(token: Token) -> str:
    if token.kind is Kind.EOF:
        return "EOF"
    if token.kind in {Kind.KEYWORD, Kind.NIL, Kind.DOT}:
        return f"<{token.text}>"
    if len(token.text) > 10:
        return quote(token.text[:10]) + "..."
    return quote(token.text)
