"""litellm, which asks /api/show in the old way whether a model knows tools."""

import json

import litellm
from questionnaire import CITY_SCHEMA, SPEAKER, WEATHER, WRITER, Report, url

report = Report()
shared = {"api_base": url(), "num_retries": 0}
report.models = [litellm.get_model_info(f"ollama_chat/{SPEAKER}", api_base=url())["key"]]
question = [{"role": "user", "content": "Who are you?"}]
stream = litellm.completion(
    model=f"ollama_chat/{SPEAKER}", messages=question, stream=True, **shared
)
report.chunks = [chunk.choices[0].delta.content or "" for chunk in stream]

asked = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = litellm.completion(
    model=f"ollama_chat/{SPEAKER}", messages=asked, tools=[WEATHER], **shared
)
message = answer.choices[0].message
call = message.tool_calls[0]
report.call = [call.function.name, json.loads(call.function.arguments)]
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
told = litellm.completion(
    model=f"ollama_chat/{SPEAKER}",
    messages=[*asked, message.model_dump(), result],
    tools=[WEATHER],
    **shared,
)
report.after_call = told.choices[0].message.content

schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY_SCHEMA}}
placed = litellm.completion(
    model=f"ollama_chat/{WRITER}", messages=question, response_format=schema, **shared
)
report.structured = placed.choices[0].message.content
embedded = litellm.embedding(model="ollama/embedder", input=["Hello"], api_base=url())
report.embedding = len(embedded.data[0]["embedding"])
report.fails(
    lambda: litellm.completion(model="ollama_chat/no-such-model", messages=question, **shared)
)
report.write()
