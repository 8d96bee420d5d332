/**
 * What was said: exchanges of a message and its reply, and what is sent of them.
 *
 * An exchange that failed, or whose reply has no word yet, is not sent again with the next one.
 */

import { Refusal, stream } from "./api.js";

/** One message and its reply. `state`: waiting, thinking, writing, done, stopped or failed. */
export class Exchange {
  constructor(text, pictures) {
    this.text = text;
    this.pictures = pictures;
    this.reset();
  }

  reset() {
    this.state = "waiting";
    this.id = "";
    this.thought = "";
    this.content = "";
    this.calls = "";
    this.timings = null;
    this.cut = false; // by its limit
    this.error = null;
    this.thoughtFrom = 0;
    this.thoughtFor = 0;
  }

  get running() {
    return ["waiting", "thinking", "writing"].includes(this.state);
  }

  get asked() {
    if (!this.pictures.length) return { role: "user", content: this.text };
    const pictures = this.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role: "user", content: [...pictures, { type: "text", text: this.text }] };
  }
}

export class Conversation {
  exchanges = [];
  #abort = null;

  get running() {
    return this.#abort !== null;
  }

  clear() {
    this.stop();
    this.exchanges = [];
  }

  stop() {
    this.#abort?.abort();
  }

  /** Ask for a reply to the last exchange; `changed` is called as it comes. */
  async answer(choices, changed) {
    const exchange = this.exchanges.at(-1);
    exchange.reset();
    this.#abort = new AbortController();
    try {
      const body = { ...choices.sent, messages: this.#messages(choices.system), stream: true };
      const told = stream("v1/chat/completions", { body, signal: this.#abort.signal });
      for await (const { data } of told) {
        if (data === "[DONE]") break;
        read(exchange, JSON.parse(data));
        changed();
      }
      exchange.state = "done";
    } catch (error) {
      exchange.state = error.name === "AbortError" ? "stopped" : "failed";
      exchange.error = error.name === "AbortError" ? null : error;
    } finally {
      endThought(exchange);
      this.#abort = null;
      changed();
    }
  }

  #messages(system) {
    const said = system ? [{ role: "system", content: system }] : [];
    for (const exchange of this.exchanges.slice(0, -1)) {
      if (exchange.content) {
        said.push(exchange.asked, { role: "assistant", content: exchange.content });
      }
    }
    return [...said, this.exchanges.at(-1).asked];
  }
}

function read(exchange, chunk) {
  if (chunk.error) throw new Refusal(200, chunk.error);
  exchange.id ||= chunk.id;
  exchange.timings = chunk.timings ?? exchange.timings;
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { reasoning_content: thought, content, tool_calls: calls } = choice.delta;
  if (thought) {
    exchange.thoughtFrom ||= performance.now();
    exchange.thought += thought;
    exchange.state = "thinking";
  }
  if (content) {
    endThought(exchange);
    exchange.content += content;
    exchange.state = "writing";
  }
  for (const call of calls ?? []) {
    const { name = "", arguments: given = "" } = call.function ?? {};
    exchange.calls += (name ? `\n${name} ` : "") + given;
  }
  exchange.cut ||= choice.finish_reason === "length";
}

function endThought(exchange) {
  if (exchange.thoughtFrom && !exchange.thoughtFor) {
    exchange.thoughtFor = (performance.now() - exchange.thoughtFrom) / 1000;
  }
}
