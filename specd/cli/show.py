"""`specd show`: what is known of one model."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, Json, daemon_client
from specd.cli.words import make_console


def show(model: Annotated[str, typer.Argument(help="A model of `specd list`.")]) -> None:
    """Show what is known of a model."""
    asyncio.run(_show(daemon_client(), make_console(), model))


async def _show(client: Client, console: Console, model: str) -> None:
    async with client:
        answer = await client.post("/api/show", {"model": model})
    for title, lines in sections(answer):
        console.print(title, style="bold")
        for line in lines:
            console.print(f"    {line}", markup=False)
        console.print()


def sections(answer: Json) -> list[tuple[str, list[str]]]:
    """Titles with their lines, in Ollama's order; a title without lines is left out."""
    info, details = answer.get("model_info") or {}, answer.get("details") or {}
    architecture = info.get("general.architecture", details.get("family", ""))
    facts = {
        "architecture": architecture,
        "parameters": details.get("parameter_size", ""),
        "context length": info.get(f"{architecture}.context_length", ""),
        "embedding length": info.get(f"{architecture}.embedding_length", ""),
        "quantization": details.get("quantization_level", ""),
    }
    found = [
        ("Model", [f"{name:<20}{value}" for name, value in facts.items() if value]),
        ("Capabilities", list(answer.get("capabilities") or [])),
        ("Parameters", _lines(answer.get("parameters"))),
        ("System", _lines(answer.get("system"))),
        ("License", _lines(answer.get("license"))[:2]),
    ]
    return [(title, lines) for title, lines in found if lines]


def _lines(text: object) -> list[str]:
    return [line.rstrip() for line in str(text or "").splitlines() if line.strip()]
