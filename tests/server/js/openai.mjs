// OpenAI's library: each line printed is what one of its ways to ask came to.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = "tiny:1m";
const messages = [{ role: "user", content: "hello" }];
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const say = (what) => console.log(JSON.stringify(what));

const whole = await client.chat.completions.create({ model, messages });
say(whole.choices[0].message.content);

const stream = client.chat.completions.stream({
  model,
  messages,
  stream_options: { include_usage: true },
});
say(await stream.finalContent());
say((await stream.totalUsage()).total_tokens > 0);

const seen = [];
const look = {
  type: "function",
  function: {
    name: "look",
    parameters: { type: "object", properties: { at: { type: "string" } } },
    parse: JSON.parse,
    function: ({ at }) => {
      seen.push(at);
      return "blue";
    },
  },
};
const runner = client.chat.completions.runTools({ model, messages, tools: [look], stream: true });
say(await runner.finalContent());
say(seen);

const bird = z.object({ name: z.string(), legs: z.number().int() });
const parsed = await client.chat.completions.parse({
  model,
  messages,
  response_format: zodResponseFormat(bird, "bird"),
});
say(parsed.choices[0].message.parsed);

const responses = client.responses.stream({ model, input: "hello" });
say((await responses.finalResponse()).output_text);
