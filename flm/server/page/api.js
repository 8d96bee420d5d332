/** The server's public API: its key, its replies, its streams, its errors. */

const KEY = "flm-key";

/** What the server refuses or cannot do, in its own words. */
export class Refusal extends Error {
  constructor(status, error) {
    const fix = error.fix ?? "";
    super((error.message ?? `The server said ${status}`).replace(` Fix: ${fix}.`, ""));
    this.status = status;
    this.code = error.code ?? "";
    this.fix = fix;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function setKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

async function ask(path, { body, signal } = {}) {
  const headers = hasKey() ? { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` } : {};
  const sent = body === undefined ? { headers, signal } : {
    method: "POST",
    headers: { ...headers, "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...sent });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const fix = "see whether flm serve still runs";
    throw new Refusal(0, { message: "The server cannot be reached.", fix });
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Refusal(response.status, told.error ?? {});
}

export const getJson = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();
export const postJson = async (path, body) => (await ask(path, { body })).json();

/** Each of a stream's events: what it is called, "message" without a name, and its data. */
export async function* stream(path, options = {}) {
  const response = await ask(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const fields = { event: "message", data: "" };
      for (const line of event.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      if (fields.data) yield fields;
    }
  }
}
