"""The command line as a whole: which commands there are, and how their errors end."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

import specd
from specd.cli.bash_completion import join_split_names
from specd.cli.lazy_group import CommandEntry, LazyGroup
from specd.errors import SpecdError


def _command(name: str, where: str, help_text: str, *, hidden: bool = False) -> CommandEntry:
    module, _, attribute = where.partition(":")
    return CommandEntry(
        name=name,
        module=f"specd.cli.{module}",
        attribute=attribute,
        help=help_text,
        hidden=hidden,
    )


_SERVE = "Start the daemon on OLLAMA_HOST."
_LIST = "List the models on disk."


class SpecdCommands(LazyGroup):
    entries = (
        _command("serve", "serve:serve", _SERVE),
        _command("start", "serve:serve", _SERVE, hidden=True),
        _command("demo", "demo:demo", "Show the demo pair with speculation off and on."),
        _command(
            "run",
            "run:app",
            """Ask a model, or chat with it.

            Print the vector for an embedding model.
            """,
        ),
        _command("list", "list_:list_models", _LIST),
        _command("ls", "list_:list_models", _LIST, hidden=True),
        _command("ps", "ps:ps", "List the models in memory, and what drafts for them."),
        _command(
            "show",
            "show:show",
            """Show what is known of a model.

            With a flag, print only that part, unchanged.
            """,
        ),
        _command(
            "pull",
            "pull:pull",
            """Download a model or update it.

            Started again, it goes on where it was.
            """,
        ),
        _command("push", "push:push", "Upload a model to the registry that its name says."),
        _command(
            "create",
            "create:create",
            """Make a model from a Modelfile.

            `DRAFT small.gguf` in it pairs the model with a drafter.
            """,
        ),
        _command("stop", "stop:stop", "Unload a model once its running answers have ended."),
        _command("cp", "cp:cp", "Copy a model without using more disk space."),
        _command("rm", "rm:rm", "Remove models; what others share of them stays."),
        _command(
            "pairs",
            "pairs:app",
            """Show and change which drafter serves which model.

            It says why some models have none, and suggests drafters to pull.
            """,
        ),
        _command(
            "install",
            "install:install",
            """Make specd a service of systemd (as root).

            An installed one is brought up to date.
            """,
        ),
        _command(
            "uninstall",
            "install:uninstall",
            """Remove what `specd install` put in place.

            Ollama is again as it was.
            """,
        ),
        _command(
            "migrate",
            "install:migrate",
            """Take over from ollama.service.

            specd gets its port, its settings, and its models where they are.
            """,
        ),
        _command(
            "doctor",
            "doctor:doctor",
            """Say what hinders specd here, and what to do about it.

            Exits with 1 where something does not work; warnings alone exit with 0.
            """,
        ),
        _command(
            "audit",
            "audit:audit",
            """Watch what the daemon opens, holds and sends as it answers.

            It shows sockets, files, processes and memory.  Exits with 1 where the daemon, or an
            engine, opened a connection to somewhere.
            """,
        ),
        _command(
            "bench",
            "bench:bench",
            """Measure what speculation gains on this machine.

            Plain decoding, fixed draft lengths and automatic ones are measured side by side.
            """,
        ),
        _command(
            "trace",
            "trace:trace",
            """Explain a trace of speculation, and replay it.

            Exits with 1 where the controller would decide otherwise today.
            """,
        ),
        _command("help", "app:help_on", "Explain specd, or one of its commands.", hidden=True),
    )


app = typer.Typer(
    name="specd",
    cls=SpecdCommands,
    help="A drop-in replacement for the Ollama daemon that decodes speculatively.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    # Plain help has no <bool> at a flag, and starts without rich.
    rich_markup_mode=None,
)


def help_on(
    context: typer.Context, command: Annotated[str, typer.Argument(help="A command.")] = ""
) -> None:
    # The program again: what it says of itself, it says in one way.
    whole = context.parent
    assert whole is not None
    whole.command.main([command, "--help"] if command else ["--help"], prog_name=whole.info_name)


@app.callback()
def _options(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", "-v", help="Say the version.")] = False,
) -> None:
    if version:
        typer.echo(f"specd {specd.__version__} (Ollama API {specd.OLLAMA_API_VERSION})")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command of sys.argv; exits 0, 1 with a sentence, 2 for bad usage, 130 by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model says what no terminal's charset has
    join_split_names(os.environ)
    try:
        app(prog_name="specd")  # by `python -m specd` too, and TAB finds its variables by it
    except (SpecdError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except Exception as error:
        from specd.settings import Settings

        if Settings().debug:
            raise
        typer.echo(f"Error: a bug of specd's: {error!r} (where: OLLAMA_DEBUG=1)", err=True)
        sys.exit(1)
