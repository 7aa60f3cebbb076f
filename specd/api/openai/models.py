"""What `/v1/models` says of a model."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from specd.store import ModelSummary
from specd.store import name as names

Json = dict[str, object]


def models_object(models: Sequence[ModelSummary]) -> Json:
    """`data` is null for an empty store, as Ollama has it."""
    return {"object": "list", "data": [_model_entry(model) for model in models] or None}


def model_object(sent_id: str, modified_at: dt.datetime) -> Json:
    """One model under the id that it was asked for by."""
    return {
        "id": sent_id,
        "object": "model",
        "created": int(modified_at.timestamp()),
        "owned_by": names.parse(sent_id).namespace,
    }


def _model_entry(model: ModelSummary) -> Json:
    return model_object(model.name, model.modified_at)
