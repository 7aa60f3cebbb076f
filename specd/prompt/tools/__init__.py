"""Formats in which models write tool calls, one file per family, and their streaming parser."""

from specd.prompt.tools.families import formats
from specd.prompt.tools.harmony import HarmonyParser
from specd.prompt.tools.parser import ToolParser, random_call_id
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.tool_format import ToolFormat

__all__ = ["HarmonyParser", "ToolFormat", "ToolParser", "Tools", "formats", "random_call_id"]
