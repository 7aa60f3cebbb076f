// openai, the npm package: what its stream helper makes of each response.
import OpenAI from "openai";
import { readFileSync } from "node:fs";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const reports = {};
for (const [name, asked] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const stream = client.responses.stream(asked);
  const report = (reports[name] = { events: [] });
  try {
    for await (const event of stream) report.events.push(event.type);
    report.streamed = await stream.finalResponse();
  } catch (error) {
    report.error = `${error}`;
  }
  report.whole = await client.responses.create(asked);
}
console.log(JSON.stringify(reports));
