/** Requests as the stream of events tells of them: the last ones, oldest first. */

const REQUESTS_MAX = 40;

export class Requests {
  #byId = new Map();

  get all() {
    return [...this.#byId.values()];
  }

  get last() {
    return this.all.at(-1);
  }

  /** One event; whether it was about a request. */
  hear(event, told) {
    if (event === "asked") {
      this.#byId.set(told.id, { id: told.id, prompt: told.prompt_tokens, ended: false });
      const [oldest] = this.#byId.keys();
      if (this.#byId.size > REQUESTS_MAX) this.#byId.delete(oldest);
      return true;
    }
    const request = this.#byId.get(told.id);
    if (!request) return false;
    if (event === "admitted") request.cached = told.cached_tokens;
    if (event === "explained") request.why = told;
    if (event === "ended") {
      Object.assign(request, {
        ended: true,
        cached: told.cached_tokens,
        written: told.completion_tokens,
        tier: told.tier,
        kind: told.kind,
        status: told.status,
        ending: told.ending,
        waitS: told.wait_s,
        firstS: told.first_s,
        readS: told.read_s,
        writeS: told.write_s,
      });
    }
    return true;
  }
}
