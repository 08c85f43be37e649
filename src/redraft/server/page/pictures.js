// Images for a prompt: dropped, pasted or chosen, and shown small. They leave this tab with the prompt alone.

import { ApiError } from "./api.js";
import { announce, count, h } from "./dom.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const HIGH = 72;

/** The images of the next turn. `report` takes an error. */
export class Pictures {
  constructor(target, report) {
    Object.assign(this, { report, items: [], on: true });
    const accept = KINDS.join(",");
    this.input = h("input", { type: "file", accept, multiple: true, hidden: true, "aria-label": "Images" });
    this.button = h("button", { type: "button", class: "quiet", onclick: () => this.input.click() }, "Add an image");
    this.input.addEventListener("change", () => this.take(this.input.files));
    this.shown = h("div", { class: "pictures" });
    this.element = h("div", { class: "row" }, this.button, this.input, this.shown);
    target.addEventListener("dragover", (event) => this.on && event.preventDefault());
    target.addEventListener("drop", (event) => this.given(event, event.dataTransfer));
    target.addEventListener("paste", (event) => this.given(event, event.clipboardData));
  }

  /** Whether there is a place for images now. */
  allow(on) {
    this.on = on;
    this.element.hidden = !on;
  }

  given(event, data) {
    if (!this.on || !data?.files.length) return; // a text goes where texts go
    event.preventDefault();
    this.take(data.files);
  }

  async take(files) {
    try {
      for (const file of [...files]) this.add(await read(file));
      announce(count(this.items.length, "image"));
    } catch (error) {
      this.report(error);
    }
    this.input.value = "";
  }

  add(item) {
    const remove = () => {
      this.items = this.items.filter((one) => one !== item);
      small.remove();
    };
    const small = h("button", { type: "button", class: "quiet", title: "Leave it out", onclick: remove }, item.drawn());
    small.setAttribute("aria-label", `Leave out ${item.name}`);
    this.items.push(item);
    this.shown.append(small);
  }

  clear() {
    this.items = [];
    this.shown.replaceChildren();
  }
}

/** A user's content: text, or parts where there are images. */
export function content(text, items) {
  if (!items.length) return text;
  const images = items.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...images, { type: "text", text }] : images;
}

/** A file as a data URL, and a way to draw it small. Throws ApiError for what the browser cannot read. */
async function read(file) {
  if (!KINDS.includes(file.type)) throw new ApiError(0, `${file.name} is no PNG, JPEG, WebP or GIF image.`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new ApiError(0, `${file.name} is damaged, or not the image that its name says.`);
  });
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new ApiError(0, `${file.name} cannot be read.`)));
    reader.readAsDataURL(file);
  });
  const drawn = () => {
    const width = Math.max(1, Math.round((HIGH * bitmap.width) / bitmap.height));
    const canvas = h("canvas", { width, height: HIGH, role: "img", "aria-label": file.name });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, width, HIGH);
    return canvas;
  };
  return { name: file.name, url, drawn };
}
