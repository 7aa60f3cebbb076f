"""Messages → text (chat templates), and text → messages (thinking).  Pure: no I/O, no clocks."""

from specd.prompt.chat_template import render_chat, render_text
from specd.prompt.reasoning import ReasoningParser, thinks

__all__ = ["ReasoningParser", "render_chat", "render_text", "thinks"]
