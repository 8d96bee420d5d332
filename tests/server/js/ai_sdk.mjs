// The AI SDK: each line printed is what one of its ways to ask came to.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.argv[2];
const say = (what) => console.log(JSON.stringify(what));
const chats = createOpenAICompatible({
  name: "flm",
  baseURL,
  apiKey: "any",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const responses = createOpenAI({ baseURL, apiKey: "any" });
const bird = z.object({ name: z.string(), legs: z.number() });

for (const model of [chats("tiny:1m"), responses.responses("tiny:1m")]) {
  const asked = { model, maxRetries: 0, providerOptions: { openai: { store: false } } };
  const whole = await generateText({ ...asked, prompt: "hello" });
  say(whole.text);

  const stream = streamText({ ...asked, prompt: "bird ".repeat(100) });
  say(await stream.text);
  const again = streamText({ ...asked, prompt: "bird ".repeat(100) });
  say(await again.text);
  say((await again.usage).cachedInputTokens > 0);

  const seen = [];
  const look = tool({
    inputSchema: z.object({ at: z.string() }),
    execute: async ({ at }) => {
      seen.push(at);
      return "blue";
    },
  });
  const loop = streamText({
    ...asked,
    prompt: "Where?",
    tools: { look },
    stopWhen: stepCountIs(3),
  });
  say(await loop.text);
  say(seen);

  const made = await generateText({
    ...asked,
    prompt: "A bird",
    output: Output.object({ schema: bird }),
  });
  say(made.output);
}
