"""openai, the Python package."""

import json

import openai
from questionnaire import CITY_SCHEMA, SPEAKER, WEATHER, WRITER, Report, url

client = openai.OpenAI(base_url=f"{url()}/v1", api_key="unused", max_retries=0)
report = Report()
report.models = [model.id for model in client.models.list()]
question = [{"role": "user", "content": "Who are you?"}]
stream = client.chat.completions.create(model=SPEAKER, messages=question, stream=True)
report.chunks = [part.choices[0].delta.content or "" for part in stream]

asked = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = client.chat.completions.create(model=SPEAKER, messages=asked, tools=[WEATHER])
call = answer.choices[0].message.tool_calls[0]
report.call = [call.function.name, json.loads(call.function.arguments)]
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
told = client.chat.completions.create(
    model=SPEAKER, messages=[*asked, answer.choices[0].message, result], tools=[WEATHER]
)
report.after_call = told.choices[0].message.content

schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY_SCHEMA}}
placed = client.chat.completions.create(model=WRITER, messages=question, response_format=schema)
report.structured = placed.choices[0].message.content
report.embedding = len(client.embeddings.create(model="embedder", input="Hello").data[0].embedding)
report.fails(lambda: client.chat.completions.create(model="no-such-model", messages=question))
report.write()
