"""Requests for models on other servers, which render prompts and choose drafters themselves."""

from __future__ import annotations

from dataclasses import replace

from specd import core, errors
from specd.generation.resolved_request import ResolvedRequest
from specd.runner import ChatRequest


def upstream_pair(model: core.UpstreamModel) -> core.Pair:
    """Return a pair without a drafter of ours."""
    detail = f"{model.name} is served by {model.engine}, which chooses its own drafter."
    return core.Pair(target=model, reason=core.NoPair.UPSTREAM, detail=detail)


def upstream_spec(model: core.UpstreamModel, *, embeds: bool) -> core.UpstreamSpec:
    pair = upstream_pair(model)
    return core.UpstreamSpec(
        engine=model.engine,
        model=model.upstream_name,
        no_pair_reason=str(pair.reason),
        no_pair_detail=pair.detail,
        embeds=embeds,
        n_slots=0,  # unknown
    )


def chat_request(resolved: ResolvedRequest) -> ChatRequest:
    """Return the request as messages, for an engine that renders them itself.

    Raises Unsupported for a prompt that only a template of ours could express.
    """
    request, model = resolved.request, resolved.model
    if isinstance(request.prompt, core.TextPrompt):
        request = replace(request, prompt=_as_chat(request.prompt, model))
        resolved = replace(resolved, request=request)
    assert isinstance(request.prompt, core.ChatPrompt)
    return ChatRequest(
        model=model.upstream_name if isinstance(model, core.UpstreamModel) else model.name,
        messages=resolved.messages,
        options=resolved.options,
        tools=request.prompt.tools,
        think=request.think,
        n_logprobs=request.n_logprobs,
        grammar=request.grammar,
    )


def _as_chat(prompt: core.TextPrompt, model: core.ModelRef) -> core.ChatPrompt:
    needs_template = {
        "raw": prompt.raw,
        "suffix": bool(prompt.suffix),
        "template": prompt.template is not None,
        "context": bool(prompt.context),
    }
    if sent := [field for field, is_sent in needs_template.items() if is_sent]:
        raise errors.Unsupported(
            f"the engine of {model.name} takes messages only: {' and '.join(sent)} cannot be used"
        )
    system = (core.Message(role="system", content=prompt.system),) if prompt.system else ()
    user = core.Message(role="user", content=prompt.text, images=prompt.images)
    return core.ChatPrompt(messages=(*system, user))
