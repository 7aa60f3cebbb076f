"""anthropic, the Python package; it knows neither embeddings nor (here) formats."""

import anthropic
from questionnaire import SPEAKER, WEATHER, Report, url

client = anthropic.Anthropic(base_url=url(), api_key="unused", max_retries=0)
report = Report()
report.models = [model.id for model in client.models.list().data]
question = [{"role": "user", "content": "Who are you?"}]
with client.messages.stream(model=SPEAKER, max_tokens=100, messages=question) as stream:
    report.chunks = list(stream.text_stream)

tool = WEATHER["function"]
tools = [
    {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
]
asked = [{"role": "user", "content": "What is the weather in Paris?"}]
answer = client.messages.create(model=SPEAKER, max_tokens=100, messages=asked, tools=tools)
(call,) = [block for block in answer.content if block.type == "tool_use"]
report.call = [call.name, call.input]
result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
told = client.messages.create(
    model=SPEAKER,
    max_tokens=100,
    messages=[
        *asked,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ],
    tools=tools,
)
report.after_call = told.content[0].text
report.fails(lambda: client.messages.create(model="no-such-model", max_tokens=9, messages=question))
report.write()
