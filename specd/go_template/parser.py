"""Parser of templates, with the rules and error texts of Go's text/template."""

from __future__ import annotations

from typing import Final

from specd.go_template import nodes
from specd.go_template.expressions import Expressions, TokenStream
from specd.go_template.lexer import Kind, Token
from specd.go_template.literals import quote

_BRANCHES: Final[dict[str, type[nodes.If | nodes.With | nodes.Range]]] = {
    "if": nodes.If,
    "with": nodes.With,
    "range": nodes.Range,
}


def parse(text: str, functions: frozenset[str]) -> dict[str, nodes.Block]:
    """Parse a template; return its statements under "", and those of each `define` by its name.

    Raises GoTemplateError.
    """
    source = TokenStream(text, functions)
    body = _Tree(source).parse_all()
    return source.definitions | {"": body}


class _End(nodes.Node):
    """`{{end}}` or `{{else}}`; never part of a tree."""

    word = "end"

    def __str__(self) -> str:
        return f"{{{{{self.word}}}}}"


class _Else(_End):
    word = "else"


class _Tree(Expressions):
    """Parser of one body: the whole text, a `define` or a `block`."""

    def __init__(self, source: TokenStream) -> None:
        super().__init__(source)
        self._ranges = 0

    # ---------------------------------------------------------------- lists

    def parse_all(self) -> nodes.Block:
        source, found = self._source, list[nodes.Statement]()
        while source.peek().kind is not Kind.EOF:
            if source.peek().kind is Kind.LEFT:
                delimiter = source.next()
                word = source.next_word()
                if word.is_keyword("define"):
                    _Tree(source)._definition()  # noqa: SLF001 - the same class
                    continue
                source.back(delimiter, word)
            node = self._text_or_action()
            if isinstance(node, _End):
                raise source.error(f"unexpected {node}")
            found.append(node)
        return tuple(found)

    def _definition(self) -> None:
        source, context = self._source, "define clause"
        name = self._name(source.next_word(), context)
        self._expect(Kind.RIGHT, context)
        self._define(name, context)

    def _define(self, name: str, context: str) -> None:
        """Parse the body of a `define` or `block`, up to its end."""
        source = self._source
        body, end = self._list()
        if isinstance(end, _Else):
            raise source.error(f"unexpected {end} in {context}")
        source.define(name, body)

    def _list(self) -> tuple[nodes.Block, _End]:
        source, found = self._source, list[nodes.Statement]()
        while source.peek_word().kind is not Kind.EOF:
            node = self._text_or_action()
            if isinstance(node, _End):
                return tuple(found), node
            found.append(node)
        raise source.error("unexpected EOF")

    def _text_or_action(self) -> nodes.Statement | _End:
        token = self._source.next_word()
        if token.kind is Kind.TEXT:
            return nodes.Text(token.pos, token.text)
        if token.kind is not Kind.LEFT:
            raise self._unexpected(token, "input")
        self._action_line = token.line
        node = self._action()
        self._action_line = 0
        return node

    # -------------------------------------------------------------- actions

    def _action(self) -> nodes.Statement | _End:
        source = self._source
        token = source.next_word()
        match token.text if token.kind is Kind.KEYWORD else "":
            case "if" | "with" | "range":
                return self._branch(token)
            case "else":
                return self._else()
            case "end":
                return _End(self._expect(Kind.RIGHT, "end").pos)
            case "break":
                return self._loop_exit(nodes.Break(token.pos), "{{break}}")
            case "continue":
                return self._loop_exit(nodes.Continue(token.pos), "{{continue}}")
            case "template":
                return self._call()
            case "block":
                return self._block()
        source.back(token)
        token = source.peek()
        return nodes.Action(token.pos, self._pipeline("command", Kind.RIGHT))

    def _loop_exit(self, node: nodes.Break | nodes.Continue, what: str) -> nodes.Statement:
        if (following := self._source.next_word()).kind is not Kind.RIGHT:
            raise self._unexpected(following, what)
        if not self._ranges:
            raise self._source.error(f"{what} outside {{{{range}}}}")
        return node

    def _else(self) -> _End:
        following = self._source.peek_word()
        # The caller parses the rest of `else if` and `else with`.
        if following.is_keyword("if", "with"):
            return _Else(following.pos)
        return _Else(self._expect(Kind.RIGHT, "else").pos)

    def _branch(self, token: Token) -> nodes.If | nodes.With | nodes.Range:
        source, word, n_variables = self._source, token.text, len(self._variables)
        source.enter_nested("block")
        pipe = self._pipeline(word, Kind.RIGHT)
        self._ranges += word == "range"
        body, end = self._list()
        self._ranges -= word == "range"
        else_body: nodes.Block | None = None
        if isinstance(end, _Else):
            if word != "range" and source.peek().is_keyword(word):
                # One {{end}} closes both the inner and the outer statement.
                else_body = (self._branch(source.next()),)
            else:
                else_body, end = self._list()
                if isinstance(end, _Else):
                    raise source.error(f"expected end; found {end}")
        source.depth -= 1
        del self._variables[n_variables:]
        return _BRANCHES[word](token.pos, pipe, body, else_body)

    def _block(self) -> nodes.Statement:
        source, context = self._source, "block clause"
        token = source.next_word()
        name = self._name(token, context)
        pipe = self._pipeline(context, Kind.RIGHT)
        source.enter_nested("block")
        _Tree(source)._define(name, context)  # noqa: SLF001 - the same class
        source.depth -= 1
        return nodes.Call(token.pos, name, quote(name), pipe)

    def _call(self) -> nodes.Statement:
        source, context = self._source, "template clause"
        token = source.next_word()
        name = self._name(token, context)
        following = source.next_word()
        pipe = None
        if following.kind is not Kind.RIGHT:
            source.back(following)
            pipe = self._pipeline(context, Kind.RIGHT)
        return nodes.Call(token.pos, name, quote(name), pipe)

    def _name(self, token: Token, context: str) -> str:
        if token.kind not in {Kind.STRING, Kind.RAW_STRING}:
            raise self._unexpected(token, context)
        return self._unquoted(token.text)
