/** Numbers as people read them. */

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const SPANS = [["d", 86400], ["h", 3600], ["min", 60]];

export const whole = (number) => Math.round(number).toLocaleString("en");

export function counted(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** With its article. */
export const one = (noun) => `${/^[aeiou]/.test(noun) ? "an" : "a"} ${noun}`;

export function bytes(size) {
  if (size >= GIB) return `${(size / GIB).toFixed(1)} GiB`;
  return size >= 10 * MIB ? `${whole(size / MIB)} MiB` : `${(size / MIB).toFixed(1)} MiB`;
}

export function seconds(value) {
  if (value >= 100) return `${whole(value)} s`;
  if (value >= 0.995) return `${value.toPrecision(2)} s`;
  return value >= 0.001 ? `${whole(value * 1000)} ms` : "under 1 ms";
}

/** How long ago, roughly. */
export function span(value) {
  for (const [unit, length] of SPANS) {
    if (value >= length) return `${Math.round(value / length)} ${unit}`;
  }
  return `${Math.round(value)} s`;
}

export const speed = (tokens, took) => (took > 0 ? `${(tokens / took).toFixed(1)} tok/s` : null);

/** With a space that shows, where lines break and things end. */
export const oneLine = (text) => text.replaceAll("\n", "⏎");
