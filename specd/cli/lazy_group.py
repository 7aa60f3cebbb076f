"""Import the module of a command only when that command is used.

Help, version and completion need only the names and help texts in the table of app.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command that is not imported yet.

    where: `module:attribute` in specd.cli, a function with typer's annotations or a Typer app.
    help: `specd --help` prints the first sentence, `COMMAND --help` all of it.
    """

    name: str
    where: str
    help: str
    hidden: bool = False

    def listed(self) -> TyperCommand:
        """Return a command with this name and help; it has no parameters and does nothing."""
        return TyperCommand(self.name, help=inspect.cleandoc(self.help), hidden=self.hidden)

    def load(self) -> Any:
        """Return the command itself, imported."""
        module, _, attribute = self.where.partition(":")
        found = getattr(import_module(f"specd.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app = found
        else:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command()(found)
        command = typer.main.get_command(app)
        command.name, command.hidden = self.name, self.hidden
        command.help = inspect.cleandoc(self.help)
        return command


class LazyGroup(TyperGroup):
    """A command group whose subclass lists its commands in `entries`, in the order of the help."""

    entries: ClassVar[Sequence[CommandEntry]] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._by_name = {entry.name: entry for entry in self.entries}
        for entry in self.entries:
            self.add_command(entry.listed())

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        for param in params:
            # typer imports pydantic to read a flag's None, which its completion flags have.
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in self._by_name:
            command = self._by_name[name].load()
        return name, command, rest
