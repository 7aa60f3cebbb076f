"""Implement `specd audit`: watch what a running daemon opens and sends while it answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, daemon_client
from specd.cli.formatting import format_bytes, make_console
from specd.cli.sync_client import DaemonRefused, Json
from specd.doctor.audit import ProcessAudit
from specd.settings import HostAddress, Settings

_PROMPT = "Count from one to twenty."
_N_PREDICT = 64
_PAUSE_S = 0.02
_NO_TELEMETRY = (
    "none: specd sends nothing by itself. It connects to a registry only for a pull or a push,"
    " and for drafters if SPECD_AUTO_PULL_DRAFTS is set."
)


def audit(
    model: Annotated[
        str, typer.Argument(help="The model to ask; default: one that is loaded, else one on disk.")
    ] = "",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    process_audit, answered, loaded = asyncio.run(
        _audit_request(daemon_client(), Settings().host, model)
    )
    if as_json:
        typer.echo(json.dumps(_as_json(process_audit, answered, loaded), indent=2))
    else:
        _print(make_console(), process_audit, answered, loaded)
    raise typer.Exit(1 if process_audit.outbound() else 0)


async def _audit_request(
    client: Client, address: HostAddress, model: str
) -> tuple[ProcessAudit, str, list[Json]]:
    """Return the audit, the model that answered ("" for none) and the models loaded afterwards."""
    async with client:
        await client.get("/api/version")  # fails at once if no daemon listens
        process_audit = await asyncio.to_thread(ProcessAudit.of, address)
        model = model or await _pick_model(client)
        answer = asyncio.create_task(_ask(client, model))
        try:
            while not answer.done():
                await asyncio.to_thread(process_audit.sample)
                await asyncio.wait({answer}, timeout=_PAUSE_S)
            await answer
            await asyncio.to_thread(process_audit.sample)
        finally:
            answer.cancel()
        return process_audit, model, (await client.get("/api/ps")).get("models") or []


async def _pick_model(client: Client) -> str:
    for path in ("/api/ps", "/api/tags"):
        for found in (await client.get(path)).get("models") or []:
            if "embedding" not in (found.get("capabilities") or []):
                return str(found["name"])
    return ""


async def _ask(client: Client, model: str) -> None:
    if not model:
        return
    body: Json = {"model": model, "prompt": _PROMPT, "stream": False}
    body["options"] = {"num_predict": _N_PREDICT}
    try:
        await client.post("/api/generate", body)
    except DaemonRefused as error:
        raise DaemonRefused(error.status, f"{model} did not answer: {error}") from error


# --------------------------------------------------------------------------- output


def _print(console: Console, process_audit: ProcessAudit, model: str, loaded: list[Json]) -> None:
    def section(title: str, lines: list[str]) -> None:
        console.print(title, style="bold")
        for line in lines or ["none"]:
            console.print(f"  {line}", markup=False, soft_wrap=True)

    asked = f"while {model} answered" if model else "without a request: there is no model to ask"
    console.print(f"{process_audit.n_samples} samples {asked}.\n", markup=False)
    section("Listens on", sorted({c.local for c in process_audit.connections if not c.remote}))
    section("Clients", sorted({c.remote for c in process_audit.connections if c.inbound}))
    section(
        "Connections to other machines",
        [f"{c.remote} by {c.role}" for c in process_audit.outbound()],
    )
    section("Files open for writing", [str(path) for path in sorted(process_audit.written)])
    section(
        "Processes, peak memory",
        [f"{m.role} {m.pid}: {format_bytes(m.peak_bytes)}" for m in process_audit.members()],
    )
    section("Models in memory", [_format_model(one) for one in loaded])
    section("Telemetry", [_NO_TELEMETRY])


def _format_model(model: Json) -> str:
    drafter = (model.get("specd") or {}).get("drafter")
    with_drafter = f", with its drafter {drafter['name']}" if drafter else ""
    on_gpu = model.get("size_vram", 0)
    where = f", {format_bytes(on_gpu)} of it on GPUs" if on_gpu else ""
    return f"{model['name']}: {format_bytes(model['size'])}{where}{with_drafter}"


def _as_json(process_audit: ProcessAudit, model: str, loaded: list[Json]) -> Json:
    return {
        "looks": process_audit.n_samples,
        "asked": model,
        "connections": [asdict(connection) for connection in sorted(process_audit.connections)],
        "outbound": [asdict(connection) for connection in process_audit.outbound()],
        "written": [str(path) for path in sorted(process_audit.written)],
        "processes": [asdict(member) for member in process_audit.members()],
        "models": loaded,
        "telemetry": [],
    }
