"""langchain-ollama."""

import json

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from questionnaire import CITY_SCHEMA, SPEAKER, WEATHER, WRITER, Report, url

report = Report()
model = ChatOllama(model=SPEAKER, base_url=url())
report.models = [listed.model for listed in model._client.list().models]  # noqa: SLF001 - it lists models nowhere else
report.chunks = [chunk.content for chunk in model.stream("Who are you?")]

armed = model.bind_tools([WEATHER])
asked = HumanMessage("What is the weather in Paris?")
answer = armed.invoke([asked])
call = answer.tool_calls[0]
report.call = [call["name"], call["args"]]
result = ToolMessage("sunny", tool_call_id=call["id"], name=call["name"])
report.after_call = armed.invoke([asked, answer, result]).content

writer = ChatOllama(model=WRITER, base_url=url())
place = writer.with_structured_output({"title": "Place", **CITY_SCHEMA}, method="json_schema")
report.structured = json.dumps(place.invoke("Who are you?"))
embedder = OllamaEmbeddings(model="embedder", base_url=url())
report.embedding = len(embedder.embed_query("Hello"))
report.fails(lambda: ChatOllama(model="no-such-model", base_url=url()).invoke("Hi"))
report.write()
