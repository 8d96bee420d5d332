/** How long first tokens took and how fast replies were written, a dot for each request. */

import { byId, h, s } from "./dom.js";
import { seconds } from "./words.js";

const WIDTH = 172;
const HEIGHT = 84;
const LEFT = 42; // of the scale's words
const EDGE = 8;
const SLOTS_MIN = 12;
const HALF = 0.5; // of a prompt: so much makes it a kept one

/** Requests that ended, oldest first. */
export function drawPlots(requests) {
  const ended = requests.filter((each) => each.ended && each.firstS > 0);
  plot("first-plot", "First token", ended, (each) => each.firstS, seconds, true);
  const written = ended.filter((each) => each.written > 1 && each.writeS > 0);
  const perSecond = (value) => `${value.toFixed(value < 10 ? 1 : 0)} /s`;
  plot("speed-plot", "Written", written,
    (each) => (each.written - 1) / each.writeS, perSecond, false);
}

function plot(id, title, requests, valueOf, worded, logarithmic) {
  const figure = byId(id);
  if (!requests.length) {
    figure.replaceChildren(
      h("figcaption", {}, title), h("p", { class: "quiet" }, "No request yet."));
    return;
  }
  const values = requests.map(valueOf);
  const scale = scaled(values, logarithmic);
  const slots = Math.max(SLOTS_MIN, values.length);
  const at = (index) => LEFT + EDGE
    + ((slots - values.length + index) * (WIDTH - LEFT - 2 * EDGE)) / (slots - 1);
  const dots = values.map((value, index) => {
    const kept = requests[index].cached / requests[index].prompt >= HALF;
    const shape = { cx: at(index), cy: scale.y(value), r: 3.2, class: kept ? "kept" : "read" };
    return s("circle", shape, s("title", {}, `${worded(value)}, ${kept ? "kept" : "read"}`));
  });
  const last = values.at(-1);
  const label = `${title}: ${worded(last)} at last, from ${worded(Math.min(...values))} to `
    + `${worded(Math.max(...values))} in ${values.length} requests`;
  const line = values.map((value, index) => `${at(index)},${scale.y(value)}`).join(" ");
  figure.replaceChildren(
    h("figcaption", {}, title, h("strong", {}, worded(last))),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      scale.ticks.map((tick) => [
        s("line", { x1: LEFT, x2: WIDTH, y1: scale.y(tick), y2: scale.y(tick) }),
        s("text", { x: LEFT - 6, y: scale.y(tick) + 3.5 }, worded(tick))]),
      s("polyline", { points: line }),
      dots));
}

/** Where values lie, between round numbers below and above all of them. */
function scaled(values, logarithmic) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const low = logarithmic ? 10 ** Math.floor(Math.log10(least)) : 0;
  const high = logarithmic
    ? Math.max(10 * low, 10 ** Math.ceil(Math.log10(most)))
    : roundUp(most);
  const place = logarithmic
    ? (value) => Math.log10(value / low) / Math.log10(high / low)
    : (value) => value / high;
  const y = (value) => HEIGHT - EDGE - place(value) * (HEIGHT - 2 * EDGE);
  const ticks = logarithmic ? decades(low, high) : [0, high / 2, high];
  return { y, ticks };
}

function decades(low, high) {
  const count = Math.round(Math.log10(high / low));
  return Array.from({ length: count + 1 }, (_, power) => low * 10 ** power);
}

function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * unit).find((round) => round >= value);
}
