"""Choice of the call formats for a model, by its template or the name of its parser."""

from __future__ import annotations

from collections.abc import Mapping

from specd.prompt.tools.bare_json import BARE_JSON, PYTHON_TAG
from specd.prompt.tools.deepseek import DEEPSEEK
from specd.prompt.tools.gemma import FUNCTION_GEMMA, GEMMA_4
from specd.prompt.tools.glm import GLM
from specd.prompt.tools.mistral import MISTRAL
from specd.prompt.tools.pythonic import BARE_PYTHON, LFM2, LLAMA_4, OLMO_3
from specd.prompt.tools.tagged_json import TAGGED_JSON
from specd.prompt.tools.template_tag import template_tag
from specd.prompt.tools.tool_format import ToolFormat
from specd.prompt.tools.xml_functions import XML_FUNCTIONS

_HERMES = TAGGED_JSON["<tool_call>"]

#: Texts in the templates of each family.  All matching formats are tried in this order, because
#: several families share `<tool_call>`.
_OF_TEMPLATES: tuple[tuple[tuple[str, ...], tuple[ToolFormat, ...]], ...] = (
    (("[TOOL_CALLS]",), (MISTRAL,)),
    (("tool▁call▁begin", "tool▁calls▁begin"), (DEEPSEEK,)),
    (("<start_function_call>",), (FUNCTION_GEMMA,)),
    (("<|tool_call>",), (GEMMA_4,)),
    (("<|tool_call_start|>", "<|tool_list_start|>"), (LFM2, BARE_PYTHON)),
    (("<function_calls>",), (OLMO_3,)),
    (("<|python_start|>",), (LLAMA_4, PYTHON_TAG, BARE_PYTHON)),
    (("<|python_tag|>", "<|start_header_id|>"), (PYTHON_TAG, BARE_PYTHON)),
    (("<tool_call>",), (_HERMES,)),
    (("<function=", "<seed:tool_call>"), (XML_FUNCTIONS,)),
    (("<arg_key>",), (GLM,)),
    (("<|tool|>",), (TAGGED_JSON["<|tool_call|>"],)),
    *(((tag,), (form,)) for tag, form in TAGGED_JSON.items() if tag != "<tool_call>"),
)
_OF_PARSERS: Mapping[str, tuple[ToolFormat, ...]] = {
    "qwen3": (_HERMES,),
    "qwen3-thinking": (_HERMES,),
    "qwen3-vl-instruct": (_HERMES,),
    "qwen3-vl-thinking": (_HERMES,),
    "cogito": (_HERMES,),
    "qwen3-coder": (XML_FUNCTIONS,),
    "qwen3.5": (XML_FUNCTIONS,),
    "nemotron-3-nano": (XML_FUNCTIONS,),
    "nemotron-3.5-nano": (XML_FUNCTIONS,),
    "ministral": (MISTRAL,),
    "deepseek3": (DEEPSEEK,),
    "functiongemma": (FUNCTION_GEMMA,),
    "gemma4": (GEMMA_4,),
    "gemma4-no-thinking": (GEMMA_4,),
    "glm-4.7": (GLM,),
    "lfm2": (LFM2, BARE_PYTHON),
    "lfm2-thinking": (LFM2, BARE_PYTHON),
    "olmo3": (OLMO_3,),
    "olmo3-think": (OLMO_3,),
    "cohere": (TAGGED_JSON["<|START_ACTION|>"],),
}
#: For a template that matches no family.
_UNKNOWN: tuple[ToolFormat, ...] = (_HERMES, MISTRAL, XML_FUNCTIONS, PYTHON_TAG)


def formats(template: str, *, parser: str = "", tag: str | None = None) -> tuple[ToolFormat, ...]:
    """Return the formats in the order to try them; those without tags are last.

    tag: text before the calls in a Go template.
    """
    fitting = [
        form
        for signs, family in _OF_TEMPLATES
        if any(sign in template for sign in signs)
        for form in family
    ]
    found = [*fitting, *_OF_PARSERS.get(parser, ())]
    if tag is not None:
        return tuple(dict.fromkeys([*found, BARE_JSON, template_tag(tag)]))
    return tuple(dict.fromkeys([*(found or _UNKNOWN), BARE_JSON]))
