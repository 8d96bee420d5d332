/** The conversation as it is seen: an article for each exchange, redrawn where it changed. */

import { announce, byId, h } from "./dom.js";
import { bar, shares } from "./gain.js";
import { blocks, rendered } from "./markdown.js";
import { seconds, whole } from "./words.js";

const NEAR_END_PX = 80; // so near, the view stays at the end

export class ChatView {
  #views = new Map(); // exchange -> its view
  #box = byId("conversation");

  /** `again` asks for another reply to the last message. */
  constructor(conversation, again) {
    this.conversation = conversation;
    this.again = again;
  }

  draw() {
    const { exchanges } = this.conversation;
    const below = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight;
    byId("welcome").hidden = exchanges.length > 0;
    for (const [exchange, view] of this.#views) {
      if (!exchanges.includes(exchange)) {
        view.article.remove();
        this.#views.delete(exchange);
      }
    }
    for (const exchange of exchanges) {
      if (!this.#views.has(exchange)) {
        const view = new ExchangeView(exchange, this.again);
        this.#views.set(exchange, view);
        this.#box.append(view.article);
      }
      const last = exchange === exchanges.at(-1);
      this.#views.get(exchange).draw(last);
    }
    if (below < NEAR_END_PX) this.#box.scrollTop = this.#box.scrollHeight;
  }

  scrollToEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
  }
}

class ExchangeView {
  #shown = []; // the blocks of the reply that stand there
  #state = "";

  constructor(exchange, again) {
    this.exchange = exchange;
    this.thought = h("p", { class: "thought-text" });
    this.thoughtTitle = h("summary");
    this.thoughts = h("details", { class: "thought", hidden: true },
      this.thoughtTitle, this.thought);
    this.content = h("div", { class: "content" });
    this.calls = h("pre", { class: "calls", hidden: true, tabindex: "0" });
    this.state = h("p", { class: "state quiet" });
    this.foot = h("div", { class: "foot" });
    this.againButton = h("button", { type: "button", class: "small", onclick: again }, "Again");
    this.article = h("article", { class: "exchange" },
      h("div", { class: "asked" },
        h("h2", { class: "unseen" }, "You"),
        exchange.pictures.map((src) => h("img", { src, alt: "A picture that you sent" })),
        h("p", {}, exchange.text)),
      h("div", { class: "reply" },
        h("h2", { class: "unseen" }, "Reply"),
        this.thoughts, this.content, this.calls, this.state, this.foot));
  }

  draw(last) {
    const { exchange } = this;
    this.article.setAttribute("aria-busy", exchange.running);
    this.#drawThought();
    this.#drawContent();
    this.calls.hidden = !exchange.calls;
    this.calls.textContent = exchange.calls.trim();
    this.state.textContent = underWay(exchange);
    this.state.hidden = !this.state.textContent;
    this.againButton.hidden = !last || exchange.running;
    if (exchange.state !== this.#state) {
      this.#state = exchange.state;
      this.foot.replaceChildren(...this.#footer());
      if (!exchange.running) announce(ending(exchange));
    }
  }

  #drawThought() {
    const { thought, thoughtFor } = this.exchange;
    this.thoughts.hidden = !thought;
    this.thought.textContent = thought.trim();
    this.thoughtTitle.textContent = thoughtFor ? `Thought for ${seconds(thoughtFor)}` : "Thinking";
  }

  #drawContent() {
    const now = blocks(this.exchange.content);
    const same = now.findIndex((block, index) => block !== this.#shown[index]);
    const from = same < 0 ? now.length : same;
    while (this.content.childNodes.length > from) this.content.lastChild.remove();
    this.content.append(...now.slice(from).map(rendered));
    this.#shown = now;
  }

  #footer() {
    const { error, state, timings, cut } = this.exchange;
    if (error) {
      return [h("div", { class: "notice", role: "alert" },
        h("p", {}, error.message),
        error.fix && h("p", { class: "fix" }, `Fix: ${error.fix}`)), this.againButton]
        .filter(Boolean);
    }
    if (this.exchange.running) return [];
    const said = [];
    if (state === "stopped") said.push("stopped");
    if (cut) said.push("cut at its limit");
    if (timings) {
      const { cache_n: kept, prompt_n: read, predicted_n: written } = timings;
      said.push(`${whole(kept)} of ${whole(kept + read)} kept`, `${whole(written)} written`);
      if (timings.predicted_per_second > 0) {
        said.push(`${timings.predicted_per_second.toFixed(1)} tok/s`);
      }
      return [bar(shares(kept, read, written)), h("span", { class: "quiet" }, said.join(" · ")),
        this.againButton];
    }
    return [h("span", { class: "quiet" }, said.join(" · ")), this.againButton];
  }
}

/** Until there is something to see. The first chunk comes once it has a lane. */
function underWay({ state, id }) {
  if (state === "waiting") return id ? "Reading…" : "Waiting…";
  return state === "thinking" ? "Thinking…" : "";
}

function ending({ state, content, error }) {
  if (state === "failed") return "";
  return state === "stopped" ? "The reply was stopped." : `Reply: ${content}`;
}
