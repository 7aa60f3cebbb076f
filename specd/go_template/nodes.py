"""The tree of a parsed template.  `str` of a node is its spelling in Go's error messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree.  pos: offset in the template's text."""

    pos: int


@dataclass(frozen=True, slots=True)
class Leaf(Node):
    """A node without parts."""

    text: str

    def __str__(self) -> str:
        return self.text


# --------------------------------------------------------------------------- expressions


class Dot(Leaf):
    __slots__ = ()


class Nil(Leaf):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Literal(Leaf):
    """A text, boolean or number.  value: None for an integer that does not fit an `int`."""

    value: str | bool | int | float | None


class Function(Leaf):
    """The name of a function."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Field(Node):
    """`.A.B` of dot."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(f".{name}" for name in self.names)


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """`$x.A.B`; the first name is the variable's own, with its `$`."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.names)


@dataclass(frozen=True, slots=True)
class Chain(Node):
    """`(pipeline).A.B`."""

    node: Operand
    names: tuple[str, ...]

    def __str__(self) -> str:
        return _operand(self.node) + "".join(f".{name}" for name in self.names)


@dataclass(frozen=True, slots=True)
class Command(Node):
    args: tuple[Operand, ...]

    def __str__(self) -> str:
        return " ".join(map(_operand, self.args))


@dataclass(frozen=True, slots=True)
class Pipe(Node):
    """A pipeline.  declared: variables of `$x :=` or `$i, $x :=`.  assigns: `=`, not `:=`."""

    declared: tuple[Variable, ...]
    assigns: bool
    commands: tuple[Command, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.declared))
        sign = f" {'=' if self.assigns else ':='} " if names else ""
        return names + sign + " | ".join(map(str, self.commands))

    def fields(self) -> Iterator[Field]:
        """Yield the fields of dot in the commands, also those in parentheses."""
        for command in self.commands:
            for arg in command.args:
                if isinstance(arg, Pipe):
                    yield from arg.fields()
                elif isinstance(arg, Field):
                    yield arg


Operand = Dot | Nil | Literal | Function | Field | Variable | Chain | Pipe


def _operand(node: Operand) -> str:
    return f"({node})" if isinstance(node, Pipe) else str(node)


# ---------------------------------------------------------------------------- statements


class Text(Leaf):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Action(Node):
    pipe: Pipe

    def __str__(self) -> str:
        return f"{{{{{self.pipe}}}}}"


class Break(Node):
    __slots__ = ()


class Continue(Node):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Branch(Node):
    """A statement with a body and an optional else body."""

    pipe: Pipe
    body: Block
    else_body: Block | None


class If(Branch):
    __slots__ = ()


class With(Branch):
    __slots__ = ()


class Range(Branch):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Call(Node):
    """`{{template "name" pipe}}`, also for `{{block}}`.  quoted: the name as Go quotes it."""

    name: str
    quoted: str
    pipe: Pipe | None

    def __str__(self) -> str:
        pipe = "" if self.pipe is None else f" {self.pipe}"
        return f"{{{{template {self.quoted}{pipe}}}}}"


Statement = Text | Action | Break | Continue | If | With | Range | Call
Block = tuple[Statement, ...]
