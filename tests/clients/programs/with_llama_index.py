"""llama-index-llms-ollama; its embeddings are another package's."""

from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel, Field
from questionnaire import SPEAKER, WRITER, Report, url


class Place(BaseModel):
    kind: Literal["city", "village"]
    rivers: int = Field(ge=0, le=9)


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


report = Report()
model = Ollama(model=SPEAKER, base_url=url(), request_timeout=60)
report.models = [listed.model for listed in model.client.list().models]
question = [ChatMessage(role="user", content="Who are you?")]
report.chunks = [chunk.delta or "" for chunk in model.stream_chat(question)]

tool = FunctionTool.from_defaults(get_weather)
asked = ChatMessage(role="user", content="What is the weather in Paris?")
answer = model.chat_with_tools([tool], chat_history=[asked])
call = model.get_tool_calls_from_response(answer)[0]
report.call = [call.tool_name, call.tool_kwargs]
result = ChatMessage(role="tool", content="sunny", additional_kwargs={"tool_call_id": call.tool_id})
report.after_call = model.chat([asked, answer.message, result]).message.content

writer = Ollama(model=WRITER, base_url=url(), request_timeout=60, is_function_calling_model=False)
report.structured = writer.as_structured_llm(Place).chat(question).message.content
report.fails(lambda: Ollama(model="no-such-model", base_url=url()).chat(question))
report.write()
