"""The small layers of a model and its config, byte for byte as Ollama writes them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final

from specd import core
from specd.create.model_parts import Base, ModelPart
from specd.create.request import CreateRequest
from specd.errors import InvalidRequest
from specd.go_json_encoder import go_json
from specd.settings import parse_host
from specd.store import StoreWriter, blobs
from specd.store.gguf_metadata import format_count, metadata_of

Json = dict[str, object]
#: A layer's kind and its bytes.
Text = tuple[str, bytes]

#: A model inherits its base's licenses; the limit stops their number from growing with each copy.
MAX_LAYERS: Final = 256

# Config fields that a model takes over from its base, because they describe the same weights.
_INHERITED: Final = (
    *("renderer", "parser", "requires", "remote_host", "remote_model"),
    *("capabilities", "context_length", "embedding_length", "base_name"),
)
# Config fields taken from the base only if no layer is a GGUF.
_WEIGHTS_FIELDS: Final = (
    "model_format",
    "model_family",
    "model_families",
    "model_type",
    "file_type",
)
_INFO_FIELDS: Final = {
    "capabilities": "capabilities",
    "model_family": "model_family",
    "base_name": "base_name",
    "quantization_level": "file_type",
    "parameter_size": "model_type",
    "context_length": "context_length",
    "embedding_length": "embedding_length",
}


def text_layers(
    writer: StoreWriter, request: CreateRequest, parts: Sequence[ModelPart]
) -> list[Text]:
    """Return the small layers that the request adds to the parts, in the manifest's order.

    Raises InvalidRequest for too many layers, and StoreError.
    """
    found: list[Text] = []
    if request.template:
        found.append(("template", request.template.encode()))
    if request.system:
        found.append(("system", request.system.encode()))
    found += [("license", text.encode()) for text in request.licenses]
    parameters = _inherited_parameters(writer, parts) | dict(request.parameters)
    if parameters:
        found.append(("params", go_json(parameters, sort=True)))
    if request.messages:
        found.append(("messages", go_json([_message(message) for message in request.messages])))
    if (n := len(parts) + len(found)) > MAX_LAYERS:
        raise InvalidRequest(f"the model has {n} layers; the limit is {MAX_LAYERS}")
    return found


def with_part(parts: Sequence[ModelPart], part: ModelPart) -> list[ModelPart]:
    """Return the parts with `part` in place of others of its kind; licenses accumulate."""
    kept = parts if part.kind == "license" else [p for p in parts if p.kind != part.kind]
    return [*kept, part]


def _inherited_parameters(writer: StoreWriter, parts: Sequence[ModelPart]) -> Json:
    found: Json = {}
    for part in parts:
        if part.kind == "params":
            found |= blobs.read_json(writer.blob_path(part.layer.digest), Json)
    return found


def _message(message: core.Message) -> Json:
    """Return the JSON fields in Ollama's order; omit empty ones, except role and content."""
    entry: Json = {"role": message.role, "content": message.content}
    calls = [
        ({"id": call.id} if call.id else {})
        | {"function": {"index": call.index, "name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    optional: Json = {
        "thinking": message.thinking,
        "images": [base64.b64encode(image).decode() for image in message.images],
        "tool_calls": calls,
        "tool_name": message.tool_name,
        "tool_call_id": message.tool_call_id,
    }
    return entry | {key: value for key, value in optional.items() if value}


# --------------------------------------------------------------------------- the config


def config_text(request: CreateRequest, base: Base, parts: Sequence[ModelPart]) -> bytes:
    """Return the config blob: fields of the weights, the base and the request, the last wins."""
    weights = _weights_config(parts) or {key: base.config.get(key) for key in _WEIGHTS_FIELDS}
    inherited = {key: base.config[key] for key in _INHERITED if base.config.get(key)}
    found = weights | inherited | _requested_config(request)
    config: Json = {key: found.get(key) or "" for key in _WEIGHTS_FIELDS}
    config["model_families"] = found.get("model_families")
    config |= {key: found[key] for key in _INHERITED if found.get(key)}
    if draft := _draft_config(parts):
        config["draft"] = draft
    return go_json(config | {"architecture": "amd64", "os": "linux"})


def _requested_config(request: CreateRequest) -> Json:
    found: Json = {
        key: request.info[name] for name, key in _INFO_FIELDS.items() if request.info.get(name)
    }
    found |= {"renderer": request.renderer, "parser": request.parser, "requires": request.requires}
    if request.remote_host:
        found |= {"remote_host": parse_host(request.remote_host).url, "remote_model": request.base}
    return {key: value for key, value in found.items() if value}


def _weights_config(parts: Sequence[ModelPart]) -> Json:
    """Return the fields of the first GGUF, empty without one; drafters do not count."""
    headers = [part.header for part in parts if part.header is not None and part.kind != "draft"]
    if not headers:
        return {}
    facts = metadata_of(headers[0])
    return {
        "model_format": "gguf",
        "model_family": facts.architecture,
        "model_families": [header.architecture for header in headers],
        "model_type": format_count(facts.n_parameters),
        "file_type": facts.file_type or "unknown",
    }


def _draft_config(parts: Sequence[ModelPart]) -> Mapping[str, object]:
    drafts = [part.header for part in parts if part.header is not None and part.kind == "draft"]
    if not drafts:
        return {}
    return {"model_format": "gguf", "architecture": drafts[-1].architecture}
