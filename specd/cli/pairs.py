"""Define `specd pairs` and its subcommands.

Their work is in pairs_show.py, pairs_suggest.py and pairs_edit.py (add, refuse, remove).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specd.cli.completion import complete_models
from specd.errors import InvalidRequest, ModelNotFound


class PairsGroup(TyperGroup):
    """The group of `specd pairs`: arguments without a subcommand go to `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((arg for arg in args if not arg.startswith("-")), "")
        if first in self.commands:
            args.remove(first)
            args = [first, *args]  # `specd pairs --json suggest` works too
        elif args[:1] not in (["--help"], ["-h"]):
            # `show` takes one model, so a second argument means a misspelt command.
            names = [arg for arg in args if not arg.startswith("-")]
            if len(names) > 1 and (close := _near_command(first, self.commands)):
                raise InvalidRequest(f"no command {first!r}; did you mean `specd pairs {close}`?")
            args = ["show", *args]
        return super().parse_args(ctx, args)


def _near_command(word: str, commands: Iterable[str]) -> str:
    """Return the command with a name close to the word, else ""."""
    return next(iter(get_close_matches(word, commands, n=1)), "")


def _complete_models_and_commands(context: typer.Context, incomplete: str) -> list[str]:
    """Complete both models and subcommands."""
    group = context.parent.command if context.parent is not None else None
    commands = group.commands if isinstance(group, TyperGroup) else ()
    return [
        *(name for name in commands if name.startswith(incomplete)),
        *complete_models(incomplete),
    ]


app = typer.Typer(
    cls=PairsGroup,
    add_completion=False,
    rich_markup_mode=None,
    subcommand_metavar="[MODEL] | COMMAND [ARGS]...",
    epilog=(
        "Without a command: specd pairs [MODEL] [--json] [--forget]. --json prints JSON; --forget"
        " deletes the history of the model, or of all models."
    ),
)

_Target = Annotated[
    str,
    typer.Argument(
        help="A model, or a pattern of names with * and ? (in quotes).",
        autocompletion=complete_models,
    ),
]

_Machine = Annotated[
    bool,
    typer.Option("--machine", help="Write /etc/specd/pairs.toml, which the service reads."),
]


@app.command("show")
def show(
    model: Annotated[
        str,
        typer.Argument(
            help="A model, or a pattern in quotes; default: all models.",
            autocompletion=_complete_models_and_commands,
        ),
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the history of the model, or of all models.")
    ] = False,
) -> None:
    """Show each model's drafter, its rule and its gain, or why there is none."""
    from specd.cli import pairs_show

    try:
        pairs_show.show(model, as_json=as_json, forget=forget)
    except ModelNotFound as error:
        names = [command.name for command in app.registered_commands if command.name]
        if close := _near_command(model, names):
            raise InvalidRequest(f"{error}; did you mean `specd pairs {close}`?") from error
        raise


@app.command("suggest")
def suggest(
    model: Annotated[
        str,
        typer.Argument(
            help="One model; default: all models without a drafter.",
            autocompletion=complete_models,
        ),
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest drafters to pull for models without one."""
    from specd.cli import pairs_suggest

    pairs_suggest.suggest(model, as_json=as_json)


@app.command("add")
def add(
    target: _Target,
    drafters: Annotated[
        list[str],
        typer.Argument(
            help="Models, patterns or GGUF files, the best first.", autocompletion=complete_models
        ),
    ],
    *,
    max_draft: Annotated[int | None, typer.Option(min=1, help="Longest draft, in tokens.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Add a drafter even if it does not fit.")
    ] = False,
    machine: _Machine = False,
) -> None:
    """Choose the drafters of a model; your file goes before specd's registry."""
    from specd.cli import pairs_edit

    pairs_edit.add(target, drafters, max_draft=max_draft, force=force, of_machine=machine)


@app.command("refuse")
def refuse(
    target: _Target,
    *,
    reason: Annotated[str, typer.Option(help="The reason that `specd pairs` prints.")] = "",
    machine: _Machine = False,
) -> None:
    """Forbid drafting for a model."""
    from specd.cli import pairs_edit

    pairs_edit.refuse(target, reason=reason, of_machine=machine)


@app.command("remove")
def remove(target: _Target, *, machine: _Machine = False) -> None:
    """Remove a rule of your own, and print the rule that applies instead."""
    from specd.cli import pairs_edit

    pairs_edit.remove(target, of_machine=machine)
