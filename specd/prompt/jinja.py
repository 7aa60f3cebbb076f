"""A sandboxed Jinja environment, compatible with Hugging Face's `apply_chat_template`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

#: Errors that template code may raise: Jinja's own, and those of the Python operations it uses.
TEMPLATE_ERRORS: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@lru_cache(maxsize=64)
def compile_template(source: str) -> jinja2.Template:
    """Compile a template, with a cache.  Raises jinja2.TemplateSyntaxError."""
    return _ENVIRONMENT.from_string(source)


class _GenerationTag(Extension):
    """Support for `{% generation %}`, which marks training text; its body is rendered as is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without HTML escapes and sorted keys, unlike Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _GenerationTag],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


_ENVIRONMENT = _environment()
