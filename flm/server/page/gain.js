/** What one request cost: how much of its prompt was kept, read, and written after it. */

import { byId, h } from "./dom.js";
import { counted, one, oneLine, seconds, speed, whole } from "./words.js";

const BEFORE_CHARS = 24; // shown of what is alike
const DIFFERENT_CHARS = 40; // and of what is not
const LOST = ["evicted", "never captured"]; // nothing differs
const FROM = { lane: "the lane", host: "memory", disk: "the disk" };

export const shares = (kept, read, written) => ({ kept, read, written });

/** A bar of as many parts, in proportion. */
export function bar({ kept, read, written }) {
  const label = `${whole(kept)} tokens kept, ${whole(read)} read, ${whole(written)} written`;
  const parts = Object.entries({ kept, read, written }).filter(([, tokens]) => tokens > 0);
  return h("div", { class: "bar", role: "img", "aria-label": label },
    parts.map(([name, tokens]) => {
      const part = h("span", { class: name });
      part.style.flexGrow = tokens;
      return part;
    }));
}

/** The last request, whoever sent it. */
export function drawLast(request) {
  const { prompt, cached, written = 0 } = request;
  const known = cached !== undefined;
  const read = known ? prompt - cached : 0;
  const parts = known ? shares(cached, read, written) : shares(0, prompt, 0);
  const drawn = bar(parts);
  drawn.classList.toggle("working", !request.ended);
  byId("last").replaceChildren(
    h("p", { class: "headline" }, headline(request)),
    drawn,
    legend(parts, request),
    ...details(request, read),
    ...reason(request, read));
}

function headline({ prompt, cached }) {
  if (cached === undefined) return `${counted(prompt, "token")}, waiting`;
  return `${whole(cached)} of ${counted(prompt, "token")} kept`;
}

function legend({ kept, read, written }, { ended }) {
  const names = ended ? { kept, read, written } : { kept, "to read": read };
  return h("ul", { class: "legend" }, Object.entries(names).map(([name, tokens]) =>
    h("li", { class: name.split(" ").at(-1) }, `${whole(tokens)} ${name}`)));
}

function details(request, read) {
  if (!request.ended) return [h("p", { class: "quiet" }, "under way")];
  const { tier, kind, written, firstS, readS, writeS, waitS, ending, status } = request;
  const said = [];
  if (request.cached) said.push(`from ${FROM[tier] ?? tier}${kind ? `, up to ${one(kind)}` : ""}`);
  if (firstS > 0) said.push(`first token after ${seconds(firstS)}`);
  if (waitS >= 0.05) said.push(`of which ${seconds(waitS)} waiting`);
  if (read > 1 && readS > 0) said.push(`read at ${speed(read, readS)}`);
  if (written > 1 && writeS > 0) said.push(`written at ${speed(written - 1, writeS)}`);
  if (status >= 400 || ["left", "stalled", "cancelled"].includes(ending)) said.push(ending);
  return [h("p", { class: "quiet" }, said.join(" · "))];
}

function lost({ differs_at: seen, read }, cached) {
  const tokens = `${counted(seen, "token")} of it were`;
  const said = (count) => (count > 0 ? whole(count) : "none");
  const parts = `${said(read)} of them read, ${said(cached)} kept`;
  if (read < seen) return `${tokens} seen before, ${parts}.`;
  return `${tokens} read before, and ${cached > 0 ? `${whole(cached)} are` : "are not"} kept.`;
}

function reason({ why, ended, cached }, read) {
  if (!ended) return [];
  if (!why) {
    if (read === 0) return [h("p", {}, "Nothing had to be read.")];
    const text = cached === 0
      ? "No prompt that was read before is known to begin like this one."
      : "What was read is new.";
    return [h("p", {}, text)];
  }
  const gone = LOST.includes(why.class);
  const told = gone
    ? lost(why, cached)
    : `It parts from an earlier prompt at token ${whole(why.differs_at)}: ${why.class}, `
      + `in ${why.place.path}.`;
  const lines = gone || why.theirs === undefined ? [] : [
    ["earlier", why.theirs], ["now", why.ours],
  ].map(([name, text]) => [h("dt", {}, name),
    h("dd", {}, `…${oneLine(why.before.slice(-BEFORE_CHARS))}`,
      h("mark", {}, oneLine(text.slice(0, DIFFERENT_CHARS))))]);
  const lost = why.fate && `At ${whole(why.fate.offset)}: ${why.fate.what}.`;
  return [h("div", { class: "why" },
    h("h3", {}, "Why it was read again"),
    h("p", {}, told),
    lost && h("p", {}, lost),
    lines.length > 0 && h("dl", {}, lines),
    h("p", { class: "fix" }, `Fix: ${why.advice}`))];
}
