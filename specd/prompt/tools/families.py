"""Choice of the call formats for a model, by its template or the name of its parser."""

from __future__ import annotations

from collections.abc import Mapping

from specd.prompt.tools.bare_json import BareJson, PythonTag
from specd.prompt.tools.deepseek import DeepSeek
from specd.prompt.tools.gemma import FUNCTION_GEMMA, GEMMA_4
from specd.prompt.tools.glm import Glm
from specd.prompt.tools.mistral import Mistral
from specd.prompt.tools.pythonic import LFM2, LLAMA_4, OLMO_3, BarePython
from specd.prompt.tools.tagged_json import PAIRS, TaggedJson
from specd.prompt.tools.template_tag import TemplateTag
from specd.prompt.tools.tool_format import ToolFormat
from specd.prompt.tools.xml_functions import XmlFunctions

_HERMES = TaggedJson.of(["<tool_call>"])

#: Texts in the templates of each family.  All matching formats are tried in this order, because
#: several families share `<tool_call>`.
_OF_TEMPLATES: tuple[tuple[tuple[str, ...], tuple[ToolFormat, ...]], ...] = (
    (("[TOOL_CALLS]",), (Mistral(),)),
    (("tool▁call▁begin", "tool▁calls▁begin"), (DeepSeek(),)),
    (("<start_function_call>",), (FUNCTION_GEMMA,)),
    (("<|tool_call>",), (GEMMA_4,)),
    (("<|tool_call_start|>", "<|tool_list_start|>"), (LFM2, BarePython())),
    (("<function_calls>",), (OLMO_3,)),
    (("<|python_start|>",), (LLAMA_4, PythonTag(), BarePython())),
    (("<|python_tag|>", "<|start_header_id|>"), (PythonTag(), BarePython())),
    (("<tool_call>",), (_HERMES,)),
    (("<function=", "<seed:tool_call>"), (XmlFunctions(),)),
    (("<arg_key>",), (Glm(),)),
    (("<|tool|>",), (TaggedJson.of(["<|tool_call|>"]),)),
    *(((tag,), (TaggedJson.of([tag]),)) for tag in PAIRS if tag != "<tool_call>"),
)
_OF_PARSERS: Mapping[str, tuple[ToolFormat, ...]] = {
    "qwen3": (_HERMES,),
    "qwen3-thinking": (_HERMES,),
    "qwen3-vl-instruct": (_HERMES,),
    "qwen3-vl-thinking": (_HERMES,),
    "cogito": (_HERMES,),
    "qwen3-coder": (XmlFunctions(),),
    "qwen3.5": (XmlFunctions(),),
    "nemotron-3-nano": (XmlFunctions(),),
    "nemotron-3.5-nano": (XmlFunctions(),),
    "ministral": (Mistral(),),
    "deepseek3": (DeepSeek(),),
    "functiongemma": (FUNCTION_GEMMA,),
    "gemma4": (GEMMA_4,),
    "gemma4-no-thinking": (GEMMA_4,),
    "glm-4.7": (Glm(),),
    "lfm2": (LFM2, BarePython()),
    "lfm2-thinking": (LFM2, BarePython()),
    "olmo3": (OLMO_3,),
    "olmo3-think": (OLMO_3,),
    "cohere": (TaggedJson.of(["<|START_ACTION|>"]),),
}
#: For a template that matches no family.
_UNKNOWN: tuple[ToolFormat, ...] = (_HERMES, Mistral(), XmlFunctions(), PythonTag())


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
        return tuple(dict.fromkeys([*found, BareJson(), TemplateTag.of(tag)]))
    return tuple(dict.fromkeys([*(found or _UNKNOWN), BareJson()]))
