"""pydantic-ai, which speaks OpenAI's dialect with Ollama."""

import asyncio
import json
from typing import Literal

import openai
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.ollama import OllamaProvider
from questionnaire import SPEAKER, WRITER, Report, url


class Place(BaseModel):
    kind: Literal["city", "village"]
    rivers: int = Field(ge=0, le=9)


def agent(model: str, **options: object) -> Agent:
    provider = OllamaProvider(base_url=f"{url()}/v1")
    return Agent(OpenAIChatModel(model, provider=provider), **options)


async def main() -> Report:
    report = Report()
    client = openai.AsyncOpenAI(base_url=f"{url()}/v1", api_key="unused")
    report.models = [model.id async for model in client.models.list()]
    async with agent(SPEAKER).run_stream("Who are you?") as answer:
        report.chunks = [chunk async for chunk in answer.stream_text(delta=True, debounce_by=None)]

    armed = agent(SPEAKER)

    @armed.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        report.call = ["get_weather", {"city": city}]
        return "sunny"

    report.after_call = (await armed.run("What is the weather in Paris?")).output
    placed = await agent(WRITER, output_type=NativeOutput(Place)).run("Who are you?")
    report.structured = json.dumps(placed.output.model_dump())
    try:
        await agent("no-such-model").run("Hi")
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        report.error = [type(error).__name__, str(error)]
    return report


asyncio.run(main()).write()
