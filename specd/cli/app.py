"""The command line as a whole: which commands there are, and how their errors end."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import specd
from specd.cli import (
    audit,
    bench,
    cp,
    create,
    demo,
    doctor,
    install,
    list_,
    pairs,
    ps,
    pull,
    push,
    rm,
    run,
    serve,
    show,
    stop,
    trace,
)
from specd.errors import SpecdError
from specd.settings import Settings

app = typer.Typer(
    name="specd",
    help="A drop-in replacement for the Ollama daemon that decodes speculatively.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

# In the order of the help.
app.command("serve")(serve.serve)
app.command("start", hidden=True)(serve.serve)
app.command("demo")(demo.demo)
app.command("run", cls=run.RunCommand)(run.run)
app.command("list")(list_.list_models)
app.command("ls", hidden=True)(list_.list_models)
app.command("ps")(ps.ps)
app.command("show")(show.show)
app.command("pull")(pull.pull)
app.command("push")(push.push)
app.command("create")(create.create)
app.command("stop")(stop.stop)
app.command("cp")(cp.cp)
app.command("rm")(rm.rm)
app.add_typer(pairs.app, name="pairs")
app.command("install")(install.install)
app.command("uninstall")(install.uninstall)
app.command("migrate")(install.migrate)
app.command("doctor")(doctor.doctor)
app.command("audit")(audit.audit)
app.command("bench")(bench.bench)
app.command("trace")(trace.trace)


@app.command("help", hidden=True)
def _help(
    context: typer.Context, command: Annotated[str, typer.Argument(help="A command.")] = ""
) -> None:
    """Explain specd, or one of its commands."""
    # The program again: what it says of itself, it says in one way.
    whole = context.parent
    assert whole is not None
    whole.command.main([command, "--help"] if command else ["--help"], prog_name=whole.info_name)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"specd {specd.__version__} (Ollama API {specd.OLLAMA_API_VERSION})")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", help="Say the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command of sys.argv; exits 0, 1 with a sentence, 2 for bad usage, 130 by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model says what no terminal's charset has
    try:
        app()
    except (SpecdError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
    except Exception as error:
        if Settings().debug:
            raise
        typer.echo(f"Error: a bug of specd's: {error!r} (where: OLLAMA_DEBUG=1)", err=True)
        sys.exit(1)
