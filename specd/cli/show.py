"""Implement `specd show`: print details of one model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specd.cli.completion import complete_models
from specd.cli.formatting import columns, format_count, make_console, print_lines
from specd.cli.ps import format_exactness, format_threshold
from specd.cli.sync_client import Json, SyncClient, sync_client
from specd.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

_MAX_HEAD_LINES = 2
_MAX_ITEMS = 3

Rows = list[tuple[str, ...]]
#: A section's title and lines.
Section = tuple[str, list[str]]


def show(
    model: Annotated[
        str, typer.Argument(help="A model from `specd list`.", autocompletion=complete_models)
    ],
    *,
    of_license: Annotated[bool, typer.Option("--license", help="Print only its licences.")] = False,
    modelfile: Annotated[
        bool, typer.Option("--modelfile", help="Print only its Modelfile.")
    ] = False,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Print only its parameters.")
    ] = False,
    system: Annotated[bool, typer.Option("--system", help="Print only its system prompt.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Print only its template.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print metadata and tensors.")
    ] = False,
) -> None:
    asked = {
        "license": of_license,
        "modelfile": modelfile,
        "parameters": parameters,
        "system": system,
        "template": template,
    }
    parts = [part for part, wanted in asked.items() if wanted]
    if len(parts) > 1:
        raise InvalidRequest(
            "only one of --license, --modelfile, --parameters, --system and --template can be given"
        )
    part = parts[0] if parts else None
    _show(sync_client(), make_console(), model, part, verbose=verbose)


def _show(
    client: SyncClient,
    console: Console,
    model: str,
    part: str | None = None,
    *,
    verbose: bool = False,
) -> None:
    answer = client.post("/api/show", {"model": model, "verbose": verbose})
    if part is None:
        print_sections(console, sections(answer, verbose=verbose))
    else:
        write_raw(str(answer.get(part) or ""))


def write_raw(text: str) -> None:
    """Write text to stdout for a redirect: not wrapped, padded or coloured, with one line end."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_sections(console: Console, found: list[Section]) -> None:
    for title, lines in found:
        console.print(f"  {title}", style="bold")
        print_lines(console, [f"    {line}" for line in lines])
        console.print()


def sections(answer: Json, *, verbose: bool = False) -> list[Section]:
    """Return the sections in Ollama's order, without empty ones.  verbose: of a verbose answer."""
    found: list[tuple[str, Rows]] = [
        ("Model", _facts(answer)),
        ("Capabilities", [(name,) for name in answer.get("capabilities") or []]),
        ("Projector", _projector(answer.get("projector_info") or {})),
        ("Parameters", _parameters(answer.get("parameters") or "")),
    ]
    if verbose:
        info, tensors = answer.get("model_info") or {}, answer.get("tensors") or []
        found += [
            ("Metadata", [(key, _value(info[key])) for key in sorted(info)]),
            ("Tensors", [(t["name"], t["type"], _shape(t["shape"])) for t in tensors]),
        ]
    found += [
        ("System", _first_lines(answer.get("system"))),
        ("License", _first_lines(answer.get("license"))),
    ]
    # Not in Ollama, so it comes last.
    found.append(("Drafter", _pair(answer.get("specd") or {})))
    return [(title, columns(rows)) for title, rows in found if rows]


def _facts(answer: Json) -> Rows:
    info, details = answer.get("model_info") or {}, answer.get("details") or {}
    architecture = info.get("general.architecture") or details.get("family")
    n_parameters = info.get("general.parameter_count")
    facts = {
        "Remote model": answer.get("remote_model"),
        "Remote URL": answer.get("remote_host"),
        "architecture": architecture,
        "parameters": details.get("parameter_size")
        or (n_parameters and format_count(n_parameters)),
        "context length": info.get(f"{architecture}.context_length"),
        "embedding length": info.get(f"{architecture}.embedding_length"),
        "quantization": details.get("quantization_level"),
        "requires": answer.get("requires"),
    }
    return _drop_empty(facts)


def _projector(info: Json) -> Rows:
    architecture = info.get("general.architecture")
    n_parameters = info.get("general.parameter_count")
    facts = {
        "architecture": architecture,
        "parameters": n_parameters and format_count(n_parameters),
    }
    for sense in ("vision", "audio"):
        facts |= {
            "embedding length": facts.get("embedding length")
            or info.get(f"{architecture}.{sense}.embedding_length"),
            "dimensions": facts.get("dimensions")
            or info.get(f"{architecture}.{sense}.projection_dim"),
        }
    return _drop_empty(facts)


def _pair(pair: Json) -> Rows:
    """Return the drafter or why there is none; nothing for a daemon other than specd."""
    if not pair:
        return []
    gains = [f"{gain:g}× {task}" for task, gain in (pair.get("expected") or {}).items()]
    facts = {
        "name": pair.get("drafter") or "none",
        "chosen by": pair.get("pair_source"),
        "rule": pair.get("rule"),
        "expected": ", ".join(gains),
        "reason": pair.get("reason"),
        "why": pair.get("detail"),
        "to pull": ", ".join(pair.get("pull") or []),
        "acceptance": format_threshold(pair),
        "same text for a seed": format_exactness(pair),
    }
    return _drop_empty(facts)


def _drop_empty(facts: Json) -> Rows:
    return [(name, str(value)) for name, value in facts.items() if value]


def _parameters(text: str) -> Rows:
    """Return name and value of each line."""
    pairs = [line.strip().partition(" ") for line in text.splitlines()]
    return [(name, value.strip()) for name, _, value in pairs if name]


def _first_lines(text: object) -> Rows:
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    more = ["..."] if len(lines) > _MAX_HEAD_LINES else []
    return [(line,) for line in [*lines[:_MAX_HEAD_LINES], *more]]


def _value(value: Any) -> str:
    """Return the value on one line, however long; line ends in a text are escaped."""
    match value:
        case list():
            items = [_value(item) for item in value[:_MAX_ITEMS]]
            if more := len(value) - _MAX_ITEMS:
                items += [f"...+{more} more"] if more > 0 else []
            return f"[{', '.join(items)}]"
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case float():
            return f"{value:g}"
        case _:
            return str(value).replace("\n", "\\n")


def _shape(shape: list[int]) -> str:
    return f"[{' '.join(map(str, shape))}]"
