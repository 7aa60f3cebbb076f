"""Templates that turn messages into prompts, and parsers for thinking and tool calls in answers."""

from specd.prompt.answer_format import AnswerFormat, AnswerParser
from specd.prompt.chat_template import render_chat
from specd.prompt.reasoning import ReasoningParser
from specd.prompt.render import RenderJinja, chat_prompt, text_prompt
from specd.prompt.renderer import Renderer, render_in_process

__all__ = [
    "AnswerFormat",
    "AnswerParser",
    "ReasoningParser",
    "RenderJinja",
    "Renderer",
    "chat_prompt",
    "render_chat",
    "render_in_process",
    "text_prompt",
]
