"""A parsed template, its rendering and the names it uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from specd.errors import GoTemplateError, InvalidRequest
from specd.go_template import nodes, parser
from specd.go_template.budget import Budget
from specd.go_template.evaluator import Evaluator
from specd.go_template.functions import FUNCTIONS


@dataclass(frozen=True)
class Template:
    """A parsed template.

    templates: statements of each `define` by its name, and of the template itself under "".
    """

    text: str
    templates: dict[str, nodes.Block]

    def render(self, data: object, budget: Budget | None = None) -> str:
        """Render with `data` as dot and `$`.  Raises GoTemplateError.

        budget: shared with other renderings.
        """
        return Evaluator(self.text, self.templates, budget or Budget()).run(data)

    @property
    def body(self) -> nodes.Block:
        return self.templates[""]

    def with_body(self, body: nodes.Block) -> Template:
        return Template(self.text, self.templates | {"": body})

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of all fields and variables in the template, in lower case."""
        blocks = self.templates.values()
        return frozenset(name.lower() for block in blocks for name in names(block))


#: Ollama's longest template has 8,000 characters; a million take a minute to parse.
MAX_CHARACTERS: Final = 2**16


@lru_cache(maxsize=128)
def parse(text: str) -> Template:
    """Parse a template.  Raises GoTemplateError, `template: :LINE: ...`."""
    if len(text) > MAX_CHARACTERS:
        raise GoTemplateError(f"template: :1: it has more than {MAX_CHARACTERS} characters")
    try:
        return Template(text, parser.parse(text, frozenset(FUNCTIONS)))
    except RecursionError:
        raise GoTemplateError("template: :1: max block depth exceeded") from None


def check_template(text: str) -> None:
    """Check a template for a new model.  Raises InvalidRequest with Ollama's text."""
    try:
        parse(text)
    except GoTemplateError as error:
        raise InvalidRequest(f"template error: {error}") from error


def names(found: nodes.Block | nodes.Statement | nodes.Operand) -> Iterator[str]:
    """Return the parts of all fields and variables, without chains `(...).X`, as Ollama does."""
    match found:
        case tuple():
            for node in found:
                yield from names(node)
        case nodes.If() | nodes.With() | nodes.Range():
            yield from names(found.pipe)
            yield from names(found.body)
            yield from names(found.else_body or ())
        case nodes.Action() | nodes.Call():
            yield from names(found.pipe or ())
        case nodes.Pipe():
            for command in found.commands:
                yield from names(command.args)  # type: ignore[arg-type]
        case nodes.Field() | nodes.Variable():
            yield from found.names
