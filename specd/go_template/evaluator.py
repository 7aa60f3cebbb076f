"""Evaluator of parsed templates, with the semantics of Go's text/template and with limits.

Templates are untrusted: every run ends soon, with a text or a GoTemplateError.
Missing keys of a map are nil (Ollama's `missingkey=zero`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Final

from specd.errors import GoTemplateError
from specd.go_template import nodes
from specd.go_template.budget import Budget, cost
from specd.go_template.functions import ANY, FUNCTIONS, TEXT, call
from specd.go_template.literals import quote
from specd.go_template.printing import format_action
from specd.go_template.values import NO_VALUE, Struct, encode_utf8, is_true, type_name

_VARIABLES_PER_STEP: Final = 32


class _LoopExit(Enum):
    BREAK = auto()
    CONTINUE = auto()


class _Missing:
    """Marker: no value came through the pipe."""


_MISSING: Final = _Missing()


class Evaluator:
    """One run of one template.

    templates: statements by template name; "" is the entry point.
    """

    def __init__(self, text: str, templates: Mapping[str, nodes.Block], budget: Budget) -> None:
        self._text = text
        self._templates = templates
        self._budget = budget
        self._out: list[str] = []
        self._name = ""
        self._node: nodes.Node | None = None  # position of an error, if one occurs now
        self._variables: list[tuple[str, object]] = []

    def run(self, data: object) -> str:
        """Return the rendered text.  Raises GoTemplateError."""
        self._variables = [("$", data)]
        try:
            self._block(self._templates[""], data)
        except RecursionError:
            # Go's limit is 100,000 nested templates; Python's stack is smaller.
            raise self._error("exceeded maximum template depth") from None
        return "".join(self._out)

    # --------------------------------------------------------------- errors

    def _error(self, message: str) -> GoTemplateError:
        if self._node is None:
            return GoTemplateError(f"template: : {message}")
        before = self._text[: self._node.pos]
        line, column = before.count("\n") + 1, len(encode_utf8(before[before.rfind("\n") + 1 :]))
        return GoTemplateError(
            f"template: :{line}:{column}: executing {quote(self._name)} at <{self._node}>:"
            f" {message}"
        )

    def _spend(self, n_steps: int = 1) -> None:
        if error := self._budget.spend(n_steps):
            raise self._error(error)

    # ----------------------------------------------------------- statements

    def _block(self, block: nodes.Block, dot: object) -> _LoopExit | None:
        for node in block:
            if type(node) is nodes.Text:
                self._write(node.text)
            elif (leave := self._statement(node, dot)) is not None:
                return leave
        return None

    def _statement(self, node: nodes.Statement, dot: object) -> _LoopExit | None:
        self._node = node
        self._spend()
        match node:
            case nodes.Action():
                value = self._pipe(node.pipe, dot)
                if not node.pipe.declared:
                    self._node = node
                    self._write(format_action(value))
            case nodes.If() | nodes.With():
                return self._if(node, dot)
            case nodes.Range():
                return self._range(node, dot)
            case nodes.Call():
                self._call_template(node, dot)
            case nodes.Break():
                return _LoopExit.BREAK
            case nodes.Continue():
                return _LoopExit.CONTINUE
        return None

    def _write(self, text: str) -> None:
        self._spend(1 + cost(text))
        self._out.append(text)

    def _if(self, node: nodes.If | nodes.With, dot: object) -> _LoopExit | None:
        n_variables = len(self._variables)
        value = self._pipe(node.pipe, dot)
        leave = None
        if is_true(value):
            leave = self._block(node.body, value if type(node) is nodes.With else dot)
        elif node.else_body is not None:
            leave = self._block(node.else_body, dot)
        del self._variables[n_variables:]
        return leave

    def _range(self, node: nodes.Range, dot: object) -> _LoopExit | None:
        n_variables = len(self._variables)
        value = self._pipe(node.pipe, dot)
        inside, leave = len(self._variables), None
        n_runs = 0
        for key, item in self._items(node, value):
            n_runs += 1
            self._spend()
            self._bind(node.pipe, key, item)
            if self._block(node.body, item) is _LoopExit.BREAK:
                break
            del self._variables[inside:]
        if not n_runs and node.else_body is not None:
            leave = self._block(node.else_body, dot)
            if leave is _LoopExit.BREAK:  # as in Go, it ends this range, not the outer one
                leave = None
        del self._variables[n_variables:]
        return leave

    def _items(self, node: nodes.Range, value: object) -> Iterable[tuple[object, object]]:
        """Return the keys and elements of a range; an integer n is 0 to n - 1 without keys."""
        match value:
            case bool():
                pass
            case list():
                return enumerate(value)
            case dict():
                self._spend(len(value))
                return sorted(value.items(), key=lambda pair: pair[0])
            case int():
                if len(node.pipe.declared) > 1:
                    raise self._error(f"can't use {value} to iterate over more than one variable")
                return ((NO_VALUE, i) for i in range(value))
        if value is NO_VALUE:
            return ()
        raise self._error(f"range can't iterate over {format_action(value)}")

    def _bind(self, pipe: nodes.Pipe, key: object, item: object) -> None:
        """Set the range variables: one is the element, two are key and element."""
        if not pipe.declared:
            return
        values = (item,) if len(pipe.declared) == 1 else (key, item)
        for i, (variable, value) in enumerate(zip(pipe.declared, values, strict=True)):
            if pipe.assigns:
                self._assign(variable.names[0], value)
            else:
                place = len(self._variables) - len(values) + i
                self._variables[place] = (variable.names[0], value)

    def _call_template(self, node: nodes.Call, dot: object) -> None:
        body = self._templates.get(node.name)
        if body is None:
            raise self._error(f"template {node.quoted} not defined")
        data = NO_VALUE if node.pipe is None else self._pipe(node.pipe, dot)
        outer, self._variables = self._variables, [("$", data)]
        name, self._name = self._name, node.name
        self._block(body, data)
        self._variables, self._name = outer, name

    # ------------------------------------------------------------ variables

    def _variable(self, name: str) -> object:
        return self._variables[self._variable_index(name)][1]

    def _assign(self, name: str, value: object) -> None:
        self._variables[self._variable_index(name)] = (name, value)

    def _variable_index(self, name: str) -> int:
        """Return the index of the innermost variable of that name."""
        n_known = len(self._variables)
        for i in range(n_known - 1, -1, -1):
            if self._variables[i][0] == name:
                self._spend((n_known - i) // _VARIABLES_PER_STEP)
                return i
        raise self._error(f"undefined variable: {name}")

    # ---------------------------------------------------------- expressions

    def _pipe(self, pipe: nodes.Pipe, dot: object) -> object:
        """Evaluate a pipeline; a nil result becomes NO_VALUE."""
        self._node = pipe
        value: object = _MISSING
        for command in pipe.commands:
            value = self._command(command, dot, value)
            if value is None:
                value = NO_VALUE
        for variable in pipe.declared:
            if pipe.assigns:
                self._assign(variable.names[0], value)
            else:
                self._variables.append((variable.names[0], value))
        return value

    def _command(self, command: nodes.Command, dot: object, final: object) -> object:
        args, first = command.args, command.args[0]
        has_args = len(args) > 1 or final is not _MISSING
        if isinstance(first, nodes.Function):
            return self._call(first, command, dot, args[1:], final)
        if isinstance(first, nodes.Field | nodes.Chain) or (
            isinstance(first, nodes.Variable) and len(first.names) > 1
        ):
            return self._field(first, dot, has_args=has_args)
        if not isinstance(first, nodes.Pipe):
            self._node = first
        if has_args:
            raise self._error(f"can't give argument to non-function {first}")
        if isinstance(first, nodes.Nil):
            raise self._error("nil is not a command")
        return self._operand(first, dot)

    def _operand(self, node: nodes.Operand, dot: object) -> object:
        self._node = node
        match node:
            case nodes.Literal():
                if node.value is None:
                    raise self._error(f"{node.text} overflows int")
                return node.value
            case nodes.Dot():
                return dot
            case nodes.Field() | nodes.Variable() | nodes.Chain():
                return self._field(node, dot)
            case nodes.Pipe():
                return self._pipe(node, dot)
            case nodes.Function():
                return self._call(node, node, dot, (), _MISSING)
            case nodes.Nil():
                raise AssertionError("only arguments may be nil")

    def _argument(self, node: nodes.Operand, dot: object, kind: str) -> object:
        """Return an argument for a function; only ANY parameters distinguish nil from no value."""
        self._node = node
        if isinstance(node, nodes.Nil):
            if kind == TEXT:
                raise self._error("cannot assign nil to string")
            return NO_VALUE if kind != ANY else None
        if kind == TEXT and isinstance(node, nodes.Literal) and not isinstance(node.value, str):
            raise self._error(f"expected string; found {node}")
        return self._check_argument(self._operand(node, dot), kind)

    def _check_argument(self, value: object, kind: str) -> object:
        if kind == ANY:
            return None if value is NO_VALUE else value
        if kind == TEXT and not isinstance(value, str):
            if value is NO_VALUE:
                raise self._error("invalid value; expected string")
            raise self._error(f"wrong type for value; expected string; got {type_name(value)}")
        return value

    # --------------------------------------------------------------- fields

    def _field(
        self,
        node: nodes.Field | nodes.Variable | nodes.Chain,
        dot: object,
        *,
        has_args: bool = False,
    ) -> object:
        """Return a field of dot, of a variable or of a value in parentheses.

        has_args: arguments follow the last name, which is an error.
        """
        self._node = node
        names = node.names
        match node:
            case nodes.Field():
                value = dot
            case nodes.Variable():
                value, names = self._variable(names[0]), names[1:]
            case nodes.Chain():
                if isinstance(node.node, nodes.Nil):
                    raise self._error(f"indirection through explicit nil in {node}")
                value = self._argument(node.node, dot, "")
        last, outer = len(names) - 1, None
        for i, name in enumerate(names):
            outer, value = value, self._member(value, name, outer, has_args=has_args and i == last)
        return value

    def _member(self, value: object, name: str, outer: object, *, has_args: bool) -> object:
        """Return one field.  outer: the value that contains `value`."""
        match value:
            case dict():
                if has_args:
                    raise self._error(f"{name} is not a method but has arguments")
                return value.get(name)
            case Struct():
                if name in value.fields:
                    if has_args:
                        raise self._error(f"{name} has arguments but cannot be invoked as function")
                    return value.fields[name]
                if (method := value.methods.get(name)) is not None:
                    return method()
            case None:
                raise self._error(f"nil pointer evaluating interface {{}}.{name}")
        if value is NO_VALUE:
            return NO_VALUE
        # In Go, values inside a map have no static type.
        kind = "interface {}" if isinstance(outer, dict) else type_name(value)
        raise self._error(f"can't evaluate field {name} in type {kind}")

    # ------------------------------------------------------------ functions

    def _call(
        self,
        node: nodes.Function,
        whole: nodes.Node,
        dot: object,
        args: tuple[nodes.Operand, ...],
        final: object,
    ) -> object:
        self._node = node
        name, function = node.text, FUNCTIONS[node.text]
        n_given = len(args) + (final is not _MISSING)
        if error := function.argument_count_error(name, len(args), n_given):
            raise self._error(error)
        if name in {"and", "or"}:
            return self._and_or(args, dot, final, wanted=name == "or")
        values = [self._argument(arg, dot, function.kind(i)) for i, arg in enumerate(args)]
        if final is not _MISSING:
            values.append(self._check_argument(final, function.kind(len(args))))
        run: Callable[..., object] = function.run
        if name == "call":
            piped = final if isinstance(final, str) else f"<{type_name(final)} Value>"
            run = partial(call, str(args[0]) if args else piped)
        self._spend(1 + sum(map(cost, values)))
        try:
            value = run(*values)
        except GoTemplateError as error:
            self._node = whole
            raise self._error(f"error calling {name}: {error}") from None
        self._spend(cost(value))
        return value

    def _and_or(
        self, args: tuple[nodes.Operand, ...], dot: object, final: object, *, wanted: bool
    ) -> object:
        """Return the first argument with that truth, else the last; evaluate no further."""
        value: object = NO_VALUE
        for arg in args:
            value = self._argument(arg, dot, "")
            if is_true(value) is wanted:
                return value
        return value if final is _MISSING else final
