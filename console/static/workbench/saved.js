// The list of saved prompts, which the server searches, and the prompt that is open.
import * as api from "./api.js";
import { dateTime } from "../times.js";
import { unpack } from "./tree.js";

export class SavedPrompts {
  // onOpen is called with the id of a prompt that the user opens, onDelete with that of one that was deleted, and
  // onChange with the id of the open prompt's link, or an empty string, when another prompt is open.
  constructor({ list, search, name, status, usage, onOpen, onDelete, onChange }) {
    Object.assign(this, { list, name, status, usage, onOpen, onDelete, onChange, search, current: unsaved() });
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), 200);
    });
  }

  get id() { return this.current.id; }

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

  // load returns a prompt that open can show.
  async load(id) {
    const prompt = await api.getPrompt(id);
    unpack(prompt.document.tree); // if this throws, what is open stays, and Save does not replace the prompt
    return prompt;
  }

  // open makes a prompt that was loaded the one that is open.
  open({ id, version, name, share }) {
    this.current = { id, version, outdated: false };
    this.name.value = name;
    this.setStatus("");
    this.onChange(share);
    this.refresh();
  }

  // save stores the document under the name, if it has at most that many bytes. It does not overwrite a version that is newer than
  // the one that was opened: then it throws, and the next save creates another prompt. It reports whether the document is still
  // the one that is open.
  async save(model, document_, maxBytes) {
    const { current } = this;
    const prompt = { name: this.name.value.trim(), model, document: document_, version: current.outdated ? 0 : current.version };
    const body = JSON.stringify(prompt);
    const bytes = new Blob([body]).size;
    if (bytes > maxBytes) throw tooLarge(bytes, maxBytes);
    const isNew = !current.id || current.outdated;
    try {
      const { id = current.id, version } = await (isNew ? api.createPrompt(body) : api.updatePrompt(current.id, body));
      if (!id || !Number.isInteger(version)) throw new Error("The answer is not that of the gateway, so nothing may have been saved.");
      Object.assign(current, { id, version, outdated: false });
    } catch (error) {
      if (!isNew && (error.status === 409 || error.status === 404)) current.outdated = true;
      throw error;
    }
    this.refresh();
    if (current !== this.current) return false;
    if (isNew) this.onChange("");
    this.setStatus(savedText);
    return true;
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
    this.current = unsaved();
    this.name.value = "";
    this.setStatus("");
    this.onChange("");
  }

  setStatus(text) { this.status.textContent = text; }
}

const savedText = "Saved.";

// unsaved returns what is known of a document that is no saved prompt yet.
const unsaved = () => ({ id: null, version: 0, outdated: false });

export const mebibytes = (bytes) => (bytes / (1 << 20)).toLocaleString("en", { maximumFractionDigits: 1 });

const tooLarge = (bytes, most) => new api.ApiError(413, { code: "too_large", message: `This prompt with its branches takes ${mebibytes(bytes)} MiB, and at most ${mebibytes(most)} MiB can be saved.` }, 0);
