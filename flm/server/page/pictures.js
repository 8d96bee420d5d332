/** Pictures that go with the next message: chosen, pasted or dropped. */

import { byId, h } from "./dom.js";

const PICTURES_MAX = 8;

export class Pictures {
  #urls = [];

  /** `allowed` says whether the model sees. */
  constructor(allowed) {
    const add = (files) => allowed() && this.#add(files);
    byId("picture").addEventListener("change", (event) => {
      add(event.target.files);
      event.target.value = "";
    });
    byId("message").addEventListener("paste", (event) => add(event.clipboardData.files));
    byId("composer").addEventListener("dragover", (event) => event.preventDefault());
    byId("composer").addEventListener("drop", (event) => {
      event.preventDefault();
      add(event.dataTransfer.files);
    });
  }

  take() {
    const taken = this.#urls;
    this.#urls = [];
    this.#draw();
    return taken;
  }

  async #add(files) {
    const pictures = [...files].filter((file) => file.type.startsWith("image/"));
    const urls = await Promise.all(pictures.map(dataUrl));
    this.#urls = [...this.#urls, ...urls].slice(0, PICTURES_MAX);
    this.#draw();
  }

  #draw() {
    const box = byId("pictures");
    box.hidden = this.#urls.length === 0;
    box.replaceChildren(...this.#urls.map((src, index) => {
      const remove = () => {
        this.#urls = this.#urls.filter((_, at) => at !== index);
        this.#draw();
        byId("message").focus();
      };
      const label = `Remove picture ${index + 1}`;
      return h("button", { type: "button", "aria-label": label, onclick: remove },
        h("img", { src, alt: "" }));
    }));
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
