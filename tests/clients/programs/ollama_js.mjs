// ollama, the npm package.
import { Ollama } from "ollama";
import { readFileSync } from "node:fs";

const { schema, weather } = JSON.parse(readFileSync(0, "utf8"));
const client = new Ollama({ host: process.argv[2] });
const report = { models: (await client.list()).models.map((model) => model.name), chunks: [] };
const question = [{ role: "user", content: "Who are you?" }];
for await (const part of await client.chat({ model: "speaker", messages: question, stream: true })) {
  report.chunks.push(part.message.content);
}

const asked = [{ role: "user", content: "What is the weather in Paris?" }];
const { message } = await client.chat({ model: "speaker", messages: asked, tools: [weather] });
const call = message.tool_calls[0].function;
report.call = [call.name, call.arguments];
const result = { role: "tool", tool_name: call.name, content: "sunny" };
const told = { model: "speaker", messages: [...asked, message, result], tools: [weather] };
report.after_call = (await client.chat(told)).message.content;

const place = { model: "specd-demo", messages: question, format: schema };
report.structured = (await client.chat(place)).message.content;
report.embedding = (await client.embed({ model: "embedder", input: "Hello" })).embeddings[0].length;
try {
  await client.chat({ model: "no-such-model", messages: question });
} catch (error) {
  report.error = [error.name, error.message];
}
console.log(JSON.stringify(report));
