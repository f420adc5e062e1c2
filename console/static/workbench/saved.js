// The list of saved prompts, which the server searches, and the prompt that is open.
import * as api from "./api.js";
import { dateTime, inUTC, minute } from "../times.js";
import { copyName, rows } from "./library.js";
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
      this.usage.textContent = `${megabytes(bytes)} of ${megabytes(max_bytes)} MB used.`;
    } catch (error) {
      this.setStatus(error.message);
    }
  }

  render(prompts, more) {
    this.list.replaceChildren(...rows(prompts, {
      isOpen: (id) => id === this.id, open: this.onOpen, remove: (prompt) => this.delete(prompt),
      find: (tag) => { this.search.value = tag; this.refresh(); this.search.focus(); },
    }));
    const last = document.createElement("li");
    last.className = "soft";
    if (!prompts.length) last.textContent = this.search.value ? "No matching prompts." : "No saved prompts yet.";
    if (more) last.textContent = "Older prompts are not shown: search for them.";
    if (last.textContent) this.list.append(last);
  }

  // load returns a prompt that open can show.
  async load(id) {
    const prompt = await api.getPrompt(id);
    unpack(prompt.document.tree); // if this throws, what is open stays, and Save does not replace the prompt
    return prompt;
  }

  // open makes a prompt that was loaded the one that is open.
  open({ id, version, name, share, updated }) {
    this.current = { id, version, outdated: false };
    this.name.value = name;
    this.setSaved(updated);
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
    this.setSaved(new Date());
    return true;
  }

  // edited is called when what is shown is not what was saved any more.
  edited() {
    if (/^(Saved |$)/.test(this.status.textContent)) this.setStatus("Edited");
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

  // fork leaves the open prompt as it was saved, so that the next save stores what is shown as a copy.
  fork() {
    this.current = unsaved();
    this.name.value = copyName(this.name.value);
    this.onChange("");
  }

  // close leaves no prompt open, so that the next save creates one.
  close() {
    this.current = unsaved();
    this.name.value = "";
    this.setStatus("");
    this.onChange("");
  }

  setStatus(textContent, title = "") { Object.assign(this.status, { textContent, title }); }

  // setSaved says when what is shown was saved: today at, or on another day.
  setSaved(time) {
    const isToday = new Date(time).toDateString() === new Date().toDateString();
    this.setStatus(`Saved ${isToday ? minute(time) : dateTime(time)}`, inUTC(time));
  }
}

// unsaved returns what is known of a document that is no saved prompt yet.
const unsaved = () => ({ id: null, version: 0, outdated: false });

// megabytes are of 2^20 bytes, as in the limits of the gateway.
export const megabytes = (bytes) => (bytes / (1 << 20)).toLocaleString("en", { maximumFractionDigits: 1 });

const tooLarge = (bytes, most) => new api.ApiError(413, { code: "too_large", message: `This prompt with its branches takes ${megabytes(bytes)} MB, and at most ${megabytes(most)} MB can be saved.` }, 0);
