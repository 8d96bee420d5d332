/** What kept prompts take of memory and disk, and what they have spared since the start. */

import { byId, h } from "./dom.js";
import { bytes, counted, whole } from "./words.js";

/** `totals` of /v1/prefix-cache; `counts` are those of /metrics. */
export function drawRoom(totals, counts) {
  const meters = [
    meter("Memory", totals.bytes_kept, totals.bytes_max, `${counted(totals.slots, "snapshot")}`
      + (totals.bytes_own < totals.bytes_kept ? `; ${bytes(totals.bytes_own)} are yours` : "")),
  ];
  if (totals.disk_bytes_max) {
    const yours = `${counted(totals.disk_slots_own, "snapshot")} of yours`;
    meters.push(meter("Disk", totals.disk_bytes, totals.disk_bytes_max, yours));
  }
  byId("room").replaceChildren(...meters, spared(counts));
}

function meter(name, taken, most, more) {
  const id = `room-${name.toLowerCase()}`;
  return h("div", { class: "meter" },
    h("label", { for: id }, name),
    h("span", { class: "quiet" }, `${bytes(taken)} of ${bytes(most)}, ${more}`),
    h("meter", { id, min: 0, max: Math.max(1, most), value: taken }));
}

function spared(counts) {
  const kept = counts.get("flm_prefix_cache_reused_tokens_total") ?? 0;
  const read = counts.get("flm_prefix_cache_read_tokens_total") ?? 0;
  if (kept + read === 0) return "";
  const share = Math.floor((100 * kept) / (kept + read));
  const gone = counts.get("flm_prefix_cache_evictions_total") ?? 0;
  const evicted = gone ? ` ${counted(gone, "snapshot")} gave way to others.` : "";
  const all = whole(kept + read);
  return h("p", {}, `Since the start, of all clients: ${share} % of ${all} tokens of prompts were `
    + `kept.${evicted}`);
}

/** Sums over all labels, by name, of what Prometheus reads. */
export function countsOf(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const found = /^(\w+)(?:\{[^}]*\})? ([\d.e+-]+)/.exec(line);
    if (found) sums.set(found[1], (sums.get(found[1]) ?? 0) + Number(found[2]));
  }
  return sums;
}
