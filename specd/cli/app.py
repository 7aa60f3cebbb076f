"""Define the command line: the table of commands, and how an error ends the program."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

import specd
from specd.cli.completion import join_split_names
from specd.cli.lazy_group import CommandEntry, LazyGroup
from specd.errors import SpecdError

_SERVE = "Start the daemon on OLLAMA_HOST."
_LIST = "List the models on disk."


class SpecdCommands(LazyGroup):
    entries = (
        CommandEntry("serve", "serve:serve", _SERVE),
        CommandEntry("start", "serve:serve", _SERVE, hidden=True),
        CommandEntry("demo", "demo:demo", "Show the demo pair with speculation off and on."),
        CommandEntry(
            "run",
            "run:app",
            """Ask a model one question, or chat with it.

            An embedding model prints the vector of the text.
            """,
        ),
        CommandEntry("list", "list_:list_models", _LIST),
        CommandEntry("ls", "list_:list_models", _LIST, hidden=True),
        CommandEntry("ps", "ps:ps", "List the models in memory and their drafters."),
        CommandEntry(
            "show",
            "show:show",
            """Show details of a model.

            With a flag, print only that part, unchanged.
            """,
        ),
        CommandEntry(
            "pull",
            "pull:pull",
            """Download a model or update it.

            An interrupted download resumes where it stopped.
            """,
        ),
        CommandEntry("push", "push:push", "Upload a model to the registry in its name."),
        CommandEntry(
            "create",
            "create:create",
            """Create a model from a Modelfile.

            The line `DRAFT small.gguf` pairs the model with a drafter.
            """,
        ),
        CommandEntry("stop", "stop:stop", "Unload a model after its running answers have ended."),
        CommandEntry("cp", "cp:cp", "Copy a model without using more disk space."),
        CommandEntry("rm", "rm:rm", "Remove models; files shared with other models stay."),
        CommandEntry(
            "pairs",
            "pairs:app",
            """Show and change which drafter serves which model.

            It also explains why a model has no drafter, and suggests drafters to pull.
            """,
        ),
        CommandEntry(
            "install",
            "install:install",
            "Install specd as a systemd service, or update it (as root).",
        ),
        CommandEntry(
            "uninstall",
            "install:uninstall",
            """Remove what `specd install` put in place.

            If specd replaced Ollama, Ollama is restored.
            """,
        ),
        CommandEntry(
            "migrate",
            "install:migrate",
            """Replace ollama.service.

            specd takes over its port and settings, and uses its models where they are.
            """,
        ),
        CommandEntry(
            "doctor",
            "doctor:doctor",
            """Find problems on this machine and say how to fix them.

            Exits with 1 if something does not work; warnings alone exit with 0.
            """,
        ),
        CommandEntry(
            "audit",
            "audit:audit",
            """Show what the daemon opens and sends while it answers.

            It lists sockets, files, processes and memory.  Exits with 1 if the daemon or an engine
            opened a connection to another machine.
            """,
        ),
        CommandEntry(
            "bench",
            "bench:bench",
            """Measure what speculation gains on this machine.

            It compares plain decoding, fixed draft lengths and automatic ones.
            """,
        ),
        CommandEntry(
            "trace",
            "trace:trace",
            """Explain a speculation trace, and replay it.

            Exits with 1 if the controller would decide differently today.
            """,
        ),
        CommandEntry(
            "help", "app:help_on", "Show the help of specd, or of a command.", hidden=True
        ),
    )


app = typer.Typer(
    name="specd",
    cls=SpecdCommands,
    help="A drop-in replacement for the Ollama daemon, with speculative decoding.",
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    # Plain help prints no <bool> after a flag, and does not import rich.
    rich_markup_mode=None,
)


def help_on(
    context: typer.Context, command: Annotated[str, typer.Argument(help="A command.")] = ""
) -> None:
    # Run the program again, so that there is only one way to print help.
    whole = context.parent
    assert whole is not None
    whole.command.main([command, "--help"] if command else ["--help"], prog_name=whole.info_name)


@app.callback()
def _options(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"specd {specd.__version__} (Ollama API {specd.OLLAMA_API_VERSION})")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command of sys.argv.

    Exits with 0, with 1 after an error text, with 2 for bad usage, with 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for charsets without the character
    join_split_names(os.environ)
    try:
        app(prog_name="specd")  # the same for `python -m specd`: completion uses this name
    except (SpecdError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except Exception as error:
        from specd.settings import Settings

        if Settings().debug:
            raise
        typer.echo(
            f"Error: a bug in specd: {error!r} (set OLLAMA_DEBUG=1 for a traceback)", err=True
        )
        sys.exit(1)
