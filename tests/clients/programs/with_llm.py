"""llm with its plugin llm-ollama, which finds the server by OLLAMA_HOST."""

import os

from questionnaire import CITY_SCHEMA, SPEAKER, WRITER, Report, url

os.environ["OLLAMA_HOST"] = url()
import llm


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


report = Report()
report.models = [
    model.model_id for model in llm.get_models() if model.model_id.startswith("ollama/")
]
speaker = llm.get_model(f"ollama/{SPEAKER}")
report.chunks = list(speaker.prompt("Who are you?", stream=True))

answer = speaker.prompt("What is the weather in Paris?", tools=[get_weather], stream=False)
call = answer.tool_calls()[0]
report.call = [call.name, call.arguments]
chain = speaker.chain("What is the weather in Paris?", tools=[get_weather], stream=False)
report.after_call = chain.text().rpartition(">")[2].strip()

writer = llm.get_model(f"ollama/{WRITER}")
report.structured = writer.prompt("Who are you?", schema=CITY_SCHEMA, stream=False).text()
report.embedding = len(llm.get_embedding_model("ollama/embedder").embed("Hello"))
report.fails(lambda: llm.get_model("no-such-model"))
report.write()
