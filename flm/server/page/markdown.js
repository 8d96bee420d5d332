/**
 * What models write, as elements: paragraphs, headings, lists, quotes, tables, code, links.
 *
 * Text only ever becomes text nodes, and links lead to http and https alone. What is no markup, or
 * not yet whole, stays as it is written.
 */

import { h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = new RegExp(
  [
    /(`+)(?<code>[^`]|[^`].*?[^`])\1(?!`)/.source,
    /\*\*(?<strong>\S(?:.*?\S)?)\*\*/.source,
    /(?<![*\w])\*(?<em>[^\s*](?:[^*]*?[^\s*])?)\*(?![*\w])/.source,
    /(?<![\w_])_(?<under>[^\s_](?:[^_]*?[^\s_])?)_(?![\w_])/.source,
    /~~(?<del>\S(?:.*?\S)?)~~/.source,
    /\[(?<label>[^\]]+)\]\((?<link>https?:\/\/[^\s)]+)\)/.source,
    /(?<bare>https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/.source,
  ].join("|"),
  "su",
);

/** The parts of a text that are shown one by one; when it grows, all but the last stay. */
export function blocks(text) {
  const found = [];
  let block = [];
  let fence = "";
  const end = () => {
    if (block.length) found.push(block.join("\n"));
    block = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (fence) {
      block.push(line);
      if (mark?.startsWith(fence) && line.trim() === mark) {
        fence = "";
        end();
      }
    } else if (mark) {
      if (!ITEM.test(block[0] ?? "")) end();
      block.push(line);
      fence = mark;
    } else if (!line.trim()) {
      if (ITEM.test(block[0] ?? "")) block.push(line); // what follows may belong to its last item
      else end();
    } else {
      if (block.length && startsAnew(block, line)) end();
      block.push(line);
    }
  }
  end();
  return found;
}

function startsAnew(block, line) {
  if (ITEM.test(block[0])) {
    return block.at(-1) === "" && !ITEM.test(line) && !/^\s/.test(line);
  }
  if (block[0].startsWith(">")) return !line.startsWith(">");
  return [HEADING, RULE].some((kind) => kind.test(line) || kind.test(block[0]))
    || ITEM.test(line) || line.startsWith(">");
}

export function rendered(block) {
  const lines = block.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) return h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2]));
  if (RULE.test(block)) return h("hr");
  if (block.startsWith(">")) {
    const inside = lines.map((line) => line.replace(/^>\s?/, "")).join("\n");
    return h("blockquote", {}, blocks(inside).map(rendered));
  }
  if (ITEM.test(lines[0])) return list(lines);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return h("p", {}, inline(block));
}

function code(lines, [, mark, language]) {
  const last = lines.at(-1).trim();
  const whole = lines.length > 1 && last.startsWith(mark) && !last.replaceAll(mark[0], "");
  const text = lines.slice(1, whole ? -1 : undefined).join("\n");
  const copy = async (event) => {
    await navigator.clipboard?.writeText(text);
    event.target.textContent = "Copied";
  };
  return h("div", { class: "code" },
    h("div", { class: "code-head" },
      h("span", {}, language || "text"),
      h("button", { type: "button", class: "small", onclick: copy }, "Copy")),
    h("pre", { tabindex: "0" }, h("code", {}, text)));
}

function list(lines) {
  const indent = ITEM.exec(lines[0])[1].length;
  const ordered = /\d/.test(ITEM.exec(lines[0])[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  const start = ordered ? parseInt(ITEM.exec(lines[0])[2], 10) : null;
  return h(ordered ? "ol" : "ul", { start: start === 1 ? null : start },
    items.map((item) => h("li", {}, inside(item.join("\n").trimEnd()))));
}

function inside(text) {
  const parts = blocks(text);
  const simple = parts.map(rendered);
  if (simple[0]?.tagName === "P") simple.splice(0, 1, ...inline(parts[0]));
  return simple;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|");
  const row = (line, kind) =>
    h("tr", {}, cells(line).map((cell) => h(kind, {}, inline(cell.trim()))));
  return h("div", { class: "wide-table", tabindex: "0" },
    h("table", {},
      h("thead", {}, row(lines[0], "th")),
      h("tbody", {}, lines.slice(2).map((line) => row(line, "td")))));
}

function inline(text) {
  const nodes = [];
  let rest = text;
  for (;;) {
    const found = INLINE.exec(rest);
    if (!found) break;
    if (found.index) nodes.push(rest.slice(0, found.index));
    nodes.push(marked(found.groups));
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function marked(found) {
  if (found.code !== undefined) return h("code", {}, found.code);
  if (found.strong) return h("strong", {}, inline(found.strong));
  if (found.em ?? found.under) return h("em", {}, inline(found.em ?? found.under));
  if (found.del) return h("del", {}, inline(found.del));
  const href = found.link ?? found.bare;
  return h("a", { href, target: "_blank", rel: "noopener noreferrer" }, found.label ?? href);
}
