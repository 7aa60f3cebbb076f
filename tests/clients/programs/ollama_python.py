"""ollama, the Python package."""

import ollama
from questionnaire import CITY_SCHEMA, SPEAKER, WEATHER, WRITER, Report, url

client = ollama.Client(host=url())
report = Report()
report.models = [model.model for model in client.list().models]
question = [{"role": "user", "content": "Who are you?"}]
report.chunks = [part.message.content for part in client.chat(SPEAKER, question, stream=True)]

asked = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = client.chat(SPEAKER, asked, tools=[WEATHER])
call = answer.message.tool_calls[0]
report.call = [call.function.name, dict(call.function.arguments)]
result = {"role": "tool", "tool_name": call.function.name, "content": "sunny"}
report.after_call = client.chat(
    SPEAKER, [*asked, answer.message, result], tools=[WEATHER]
).message.content

report.structured = client.chat(WRITER, question, format=CITY_SCHEMA).message.content
report.embedding = len(client.embed("embedder", "Hello").embeddings[0])
report.fails(lambda: client.chat("no-such-model", question))
report.write()
