/** Which model is asked, and how its replies are chosen: what is left empty is the model's own. */

import { getJson } from "./api.js";
import { byId, h } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens"];

export class Choices {
  #models = [];

  /** Ask the server for its models. */
  async load() {
    const before = byId("model").value;
    const { data } = await getJson("v1/models");
    this.#models = data.filter(({ labels }) => !labels?.includes("embeddings"));
    byId("model").replaceChildren(...this.#models.map(({ id, loaded }) =>
      h("option", { value: id }, loaded === false ? `${id} (to be loaded)` : id)));
    if (this.#models.some(({ id }) => id === before)) byId("model").value = before;
    byId("model").onchange = () => this.#show();
    this.#show();
  }

  get loaded() {
    return this.#models.length > 0;
  }

  get seesPictures() {
    return this.#can("vision");
  }

  get system() {
    return byId("system").value.trim();
  }

  /** The fields of a request that say so. */
  get sent() {
    const fields = { model: byId("model").value };
    for (const name of NUMBERS) {
      const value = byId(name).valueAsNumber;
      if (!Number.isNaN(value)) fields[name] = value;
    }
    const thinking = byId("thinking").value;
    if (thinking && this.#can("reasoning")) fields.enable_thinking = thinking === "on";
    return fields;
  }

  #can(label) {
    const chosen = this.#models.find(({ id }) => id === byId("model").value);
    return chosen?.labels?.includes(label) ?? false;
  }

  #show() {
    byId("attach").hidden = !this.seesPictures;
    byId("thinking-field").hidden = !this.#can("reasoning");
  }
}
