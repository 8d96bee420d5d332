/** The panel of the prefix cache: it listens to what happens, and looks again when it should. */

import { getJson, getText, stream } from "./api.js";
import { byId, h } from "./dom.js";
import { drawLast } from "./gain.js";
import { drawPlots } from "./plots.js";
import { Requests } from "./requests.js";
import { countsOf, drawRoom } from "./room.js";
import { drawTree } from "./tree.js";
import { one, whole } from "./words.js";

const NEWS_MAX = 40;
const LOOK_AFTER_MS = 250; // so that a burst of events is one look
const AGE_MS = 15_000; // between two looks at the clock
const LISTEN_AGAIN_MS = 2000;
const MOVES = {
  kept: (what) => `kept ${one(what)}`,
  evicted: (what) => `gave up ${one(what)}: room was wanted`,
  outgrown: (what) => `gave up ${one(what)}: its conversation has a newer one`,
  forgotten: (what) => `forgot ${one(what)}`,
  written: (what) => `wrote ${one(what)} to disk`,
  left: (what) => `moved ${one(what)} to disk`,
};

export class KeptPanel {
  #requests = new Requests();
  #look = null;
  #view = null;
  #seenAt = 0;
  #counts = new Map();

  /** `failed` is told what the server refuses, `well` that it answers. */
  constructor(failed, well) {
    this.failed = failed;
    this.well = well;
    byId("with-text").addEventListener("change", () => this.lookSoon());
    drawPlots([]);
  }

  /** For as long as the page is there, and whenever it is seen: a browser has few connections. */
  async listen() {
    setInterval(() => this.#drawTree(), AGE_MS); // a look would keep an idle model loaded
    for (;;) {
      await seen();
      this.lookSoon();
      try {
        for await (const { event, data } of stream("v1/events?text=1", { signal: unseen() })) {
          this.#hear(event, JSON.parse(data));
        }
      } catch (error) {
        if (error.name === "AbortError") continue;
        await this.failed(error);
      }
      await new Promise((resolve) => setTimeout(resolve, LISTEN_AGAIN_MS));
    }
  }

  lookSoon() {
    this.#look ??= setTimeout(async () => {
      this.#look = null;
      const text = byId("with-text").checked ? "?text=1" : "";
      try {
        const [view, metrics] = await Promise.all([
          getJson(`v1/prefix-cache${text}`), getText("metrics")]);
        this.#view = view;
        this.#seenAt = performance.now();
        this.#counts = countsOf(metrics);
        this.#drawTree();
        drawRoom(view.totals, this.#counts);
        this.well();
      } catch (error) {
        this.#view = null;
        byId("tree").replaceChildren(h("p", { class: "quiet" }, error.message));
      }
    }, LOOK_AFTER_MS);
  }

  #hear(event, told) {
    const move = MOVES[event];
    if (move) {
      this.#note(event, `${move(told.kind)}, ${whole(told.offset)} tokens`);
      if (this.#view) drawRoom({ ...this.#view.totals, bytes_kept: told.bytes_kept }, this.#counts);
    } else if (this.#requests.hear(event, told)) {
      if (told.id === this.#requests.last.id) drawLast(this.#requests.last);
      if (event === "ended") drawPlots(this.#requests.all);
    }
    if (move || event === "ended") this.lookSoon();
  }

  #drawTree() {
    if (this.#view) drawTree(this.#view, (performance.now() - this.#seenAt) / 1000);
  }

  #note(event, text) {
    const now = new Date();
    const time = h("time", { datetime: now.toISOString() }, now.toLocaleTimeString("en-GB"));
    byId("news").prepend(h("li", { class: event }, time, text));
    while (byId("news").childElementCount > NEWS_MAX) byId("news").lastChild.remove();
  }
}

/** Until the page is in front. */
async function seen() {
  while (document.hidden) {
    await new Promise((resolve) => {
      document.addEventListener("visibilitychange", resolve, { once: true });
    });
  }
}

/** A signal that it is no longer. */
function unseen() {
  const abort = new AbortController();
  const leave = () => document.hidden && abort.abort();
  document.addEventListener("visibilitychange", leave, { signal: abort.signal });
  return abort.signal;
}
