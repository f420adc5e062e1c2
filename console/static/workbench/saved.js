// The list of saved prompts, which the server searches, and the prompt that is open.
import * as api from "./api.js";
import { unpack } from "./tree.js";

export class SavedPrompts {
  // onOpen is called with the id of a prompt that the user opens, onDelete after the prompt that is open was deleted, and
  // onChange with the id of the open prompt's link, or an empty string, when another prompt is open.
  constructor({ list, search, name, status, usage, onOpen, onDelete, onChange }) {
    Object.assign(this, { list, name, status, usage, onOpen, onDelete, onChange, id: null, version: 0, search });
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
    details.textContent = `${prompt.share ? "shared · " : ""}${prompt.model} · ${new Date(prompt.updated).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`;
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
    Object.assign(this, { id: prompt.id, version: prompt.version });
    this.name.value = prompt.name;
    this.setStatus("");
    this.onChange(prompt.share);
    this.refresh();
    return prompt;
  }

  // save stores the document under the name. It does not overwrite a version that is newer than the one that was opened:
  // then it throws, and the next save creates another prompt.
  async save(model, document_) {
    const fields = { name: this.name.value.trim(), model, document: document_ };
    if (this.id) {
      try {
        this.version = (await api.updatePrompt(this.id, { ...fields, version: this.version })).version;
      } catch (error) {
        if (error.status === 409 || error.status === 404) {
          this.id = null;
          this.onChange("");
        }
        throw error;
      }
    } else {
      const created = await api.createPrompt(fields);
      Object.assign(this, { id: created.id, version: created.version });
      this.onChange("");
    }
    this.setStatus("Saved.");
    this.refresh();
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
    Object.assign(this, { id: null, version: 0 });
    this.name.value = "";
    this.setStatus("");
    this.onChange("");
  }

  setStatus(text) { this.status.textContent = text; }
}

const mebibytes = (bytes) => (bytes / (1 << 20)).toLocaleString(undefined, { maximumFractionDigits: 1 });
