"""Templates that turn messages into prompts, and parsers for thinking and tool calls in answers."""

from specd.prompt.answer_format import AnswerFormat, AnswerParser
from specd.prompt.chat_template import render_chat, render_text
from specd.prompt.reasoning import ReasoningParser
from specd.prompt.render import RenderJinja, chat_prompt, text_prompt
from specd.prompt.render_process import render_in_process
from specd.prompt.renderer import Renderer

__all__ = [
    "AnswerFormat",
    "AnswerParser",
    "ReasoningParser",
    "RenderJinja",
    "Renderer",
    "chat_prompt",
    "render_chat",
    "render_in_process",
    "render_text",
    "text_prompt",
]
