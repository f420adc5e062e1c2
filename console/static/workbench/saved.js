// The list of saved prompts, which the server searches, and the prompt that is open.
import * as api from "./api.js";
import { dateTime } from "../times.js";
import { unpack } from "./tree.js";

export class SavedPrompts {
  // onOpen is called with the id of a prompt that the user opens, onDelete after the prompt that is open was deleted, and
  // onChange with the id of the open prompt's link, or an empty string, when another prompt is open.
  constructor({ list, search, name, status, usage, onOpen, onDelete, onChange }) {
    Object.assign(this, { list, name, status, usage, onOpen, onDelete, onChange, id: null, version: 0, outdated: false, search });
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), 200);
    });
  }

  async refresh() {
    try {
      const { prompts, more, bytes, max_bytes } = await api.searchPrompts(this.search.value);
      this.render(prompts, more);
      this.usage.textContent = `${mebibytes(bytes)} of ${mebibytes(max_bytes)} MiB used.`;
    } catch (error) {
      this.setStatus(error.message);
    }
  }

  render(prompts, more) {
    this.list.replaceChildren(...prompts.map((prompt) => this.createRow(prompt)));
    const last = document.createElement("li");
    last.className = "soft";
    if (!prompts.length) last.textContent = this.search.value ? "No matching prompts." : "No saved prompts yet.";
    if (more) last.textContent = "Older prompts are not shown: search for them.";
    if (last.textContent) this.list.append(last);
  }

  createRow(prompt) {
    const item = document.createElement("li");
    const openButton = document.createElement("button");
    openButton.type = "button";
    openButton.className = "quiet";
    openButton.textContent = prompt.name;
    if (prompt.id === this.id) openButton.setAttribute("aria-current", "true");
    openButton.addEventListener("click", () => this.onOpen(prompt.id));
    const details = document.createElement("small");
    details.textContent = `${prompt.share ? "shared · " : ""}${prompt.model} · ${dateTime(prompt.updated)}`;
    const deleteButton = document.createElement("button");
    deleteButton.type = "button";
    deleteButton.className = "quiet";
    deleteButton.textContent = "Delete";
    deleteButton.setAttribute("aria-label", `Delete ${prompt.name}`);
    deleteButton.addEventListener("click", () => this.delete(prompt));
    item.append(openButton, details, deleteButton);
    return item;
  }

  async load(id) {
    const prompt = await api.getPrompt(id);
    unpack(prompt.document.tree); // if this throws, the prompt is not open, and Save does not replace it
    Object.assign(this, { id: prompt.id, version: prompt.version, outdated: false });
    this.name.value = prompt.name;
    this.setStatus("");
    this.onChange(prompt.share);
    this.refresh();
    return prompt;
  }

  // save stores the document under the name, if it has at most that many bytes. It does not overwrite a version that is newer than
  // the one that was opened: then it throws, and the next save creates another prompt.
  async save(model, document_, maxBytes) {
    const prompt = { name: this.name.value.trim(), model, document: document_, version: this.outdated ? 0 : this.version };
    const body = JSON.stringify(prompt);
    const bytes = new Blob([body]).size;
    if (bytes > maxBytes) throw tooLarge(bytes, maxBytes);
    const isNew = !this.id || this.outdated;
    try {
      const { id = this.id, version } = await (isNew ? api.createPrompt(body) : api.updatePrompt(this.id, body));
      if (!id || !Number.isInteger(version)) throw new Error("The answer is not that of the gateway, so nothing may have been saved.");
      Object.assign(this, { id, version, outdated: false });
    } catch (error) {
      if (!isNew && (error.status === 409 || error.status === 404)) this.outdated = true;
      throw error;
    }
    if (isNew) this.onChange("");
    this.setStatus(savedText);
    this.refresh();
  }

  // edited is called when what is shown is not what was saved any more.
  edited() {
    if (this.id && ["", savedText].includes(this.status.textContent)) this.setStatus("Edited");
  }

  async delete(prompt) {
    if (!confirm(`Delete “${prompt.name}” with all its branches? This cannot be undone.`)) return;
    try {
      await api.deletePrompt(prompt.id);
      if (this.id === prompt.id) this.close();
      this.setStatus(`“${prompt.name}” deleted.`);
      this.onDelete(prompt.id);
    } catch (error) {
      this.setStatus(error.message);
    }
    this.refresh();
  }

  // close leaves no prompt open, so that the next save creates one.
  close() {
    Object.assign(this, { id: null, version: 0, outdated: false });
    this.name.value = "";
    this.setStatus("");
    this.onChange("");
  }

  setStatus(text) { this.status.textContent = text; }
}

const savedText = "Saved.";

export const mebibytes = (bytes) => (bytes / (1 << 20)).toLocaleString("en", { maximumFractionDigits: 1 });

const tooLarge = (bytes, most) => new api.ApiError(413, { code: "too_large", message: `This prompt with its branches takes ${mebibytes(bytes)} MiB, and at most ${mebibytes(most)} MiB can be saved.` }, 0);
