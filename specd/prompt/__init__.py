"""Messages → text (templates), and text → messages (thinking, tool calls).  Pure: no I/O."""

from specd.prompt.answer_format import AnswerFormat, AnswerParser
from specd.prompt.chat_template import render_chat, render_text
from specd.prompt.reasoning import ReasoningParser
from specd.prompt.render import chat_prompt, text_prompt
from specd.prompt.renderer import RENDERER

__all__ = [
    "RENDERER",
    "AnswerFormat",
    "AnswerParser",
    "ReasoningParser",
    "chat_prompt",
    "render_chat",
    "render_text",
    "text_prompt",
]
