/** What is kept of prompts: each stretch where it lies, below what leads to it. */

import { byId, h } from "./dom.js";
import { bytes, counted, oneLine, span, whole } from "./words.js";

const DEPTH_MAX = 8; // that is shown by moving names to the right
const TIERS = { host: "memory", disk: "disk" };

/** A reply of /v1/prefix-cache, and how many seconds old it is. */
export function drawTree({ tree, truncated, volatility }, since) {
  const longest = Math.max(1, ...tree.map((stretch) => stretch.end));
  const below = new Map();
  tree.forEach((stretch, index) => {
    const at = stretch.above ?? "root";
    below.set(at, [...(below.get(at) ?? []), { stretch, index }]);
  });
  const closed = new Set([...byId("tree").querySelectorAll("details:not([open])")]
    .map((each) => each.dataset.way));

  const branches = (at, way, depth) => {
    const children = below.get(at) ?? [];
    return children.length === 0 ? null : h("ul", {}, children.map(({ stretch, index }) => {
      const here = `${way}/${stretch.start}-${stretch.end}-${stretch.slot ?? ""}`;
      const row = drawn(stretch, longest, since);
      row.style.setProperty("--depth", Math.min(depth, DEPTH_MAX));
      const inner = branches(index, here, depth + 1);
      if (!inner) return h("li", { class: "leaf" }, row);
      return h("li", {}, h("details", { open: !closed.has(here), "data-way": here },
        h("summary", {}, row), inner));
    }));
  };

  const focused = document.activeElement.closest("#tree details")?.dataset.way;
  byId("tree").replaceChildren(
    branches("root", "", 0) ?? h("p", { class: "quiet" }, "Nothing is kept yet."),
    truncated ? h("p", { class: "quiet" }, "… and more") : "",
    ...volatility.map((row) => h("p", { class: "why" },
      `${row.place} +${row.offset} changes (${row.class}), ${row.times}× in `
      + `${counted(row.requests, "request")}: ${row.advice}`)));
  if (focused) byId("tree").querySelector(`[data-way="${focused}"] > summary`)?.focus();
}

function drawn(stretch, longest, since) {
  const { start, end, kind, tiers, leases } = stretch;
  const before = h("span", { class: "before" });
  const here = h("span", { class: tiers.includes("host") || !kind ? "here" : "here away" });
  before.style.width = `${(100 * start) / longest}%`;
  here.style.width = `${(100 * (end - start)) / longest}%`;
  return h("div", { class: "stretch" },
    h("div", { class: "track", "aria-hidden": "true" }, before, here),
    h("div", { class: "names" },
      h("strong", {}, kind ?? (leases ? "in use" : "shared")),
      h("span", {}, `${whole(start)} … ${whole(end)}`),
      tiers.length > 0 && h("span", { class: "tier" },
        tiers.map((tier) => TIERS[tier] ?? tier).join(" + "))),
    kind && h("div", { class: "quiet" }, facts(stretch, since)),
    stretch.text && h("div", { class: "text" }, oneLine(stretch.text)));
}

function facts(stretch, since) {
  const said = [`${bytes(stretch.bytes_own)} own`, `${bytes(stretch.bytes_shared)} shared`];
  if (stretch.hits) said.push(`used ${stretch.hits}×`);
  if (stretch.idle_s !== null) said.push(`${span(stretch.idle_s + since)} ago`);
  const awaited = stretch.awaited_s === null ? 0 : stretch.awaited_s - since;
  if (awaited > 0) said.push(`awaited for ${span(awaited)}`);
  return said.join(" · ");
}
