// openai, the npm package: a sound as text, whole and streamed, and what it says of a deaf model.
import OpenAI, { toFile } from "openai";
import { readFileSync } from "node:fs";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const sound = readFileSync(0);
const asked = { model: "ear", language: "en", file: await toFile(sound, "a.wav") };
const report = { deltas: [] };
report.whole = (await client.audio.transcriptions.create(asked)).text;
for await (const event of await client.audio.transcriptions.create({ ...asked, stream: true })) {
  if (event.type === "transcript.text.delta") report.deltas.push(event.delta);
  else report.streamed = event.text;
}
try {
  await client.audio.transcriptions.create({ ...asked, model: "deaf" });
} catch (error) {
  report.error = [error.name, error.constructor.name, error.message];
}
console.log(JSON.stringify(report));
