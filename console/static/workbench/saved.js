// The list of saved prompts, which the server searches, and the prompt that is open.
import * as api from "./api.js";
import { dateTime, inUTC, minute } from "../times.js";
import { copyName, rows, sharedRows } from "./library.js";
import { element } from "./state.js";
import { unpack } from "./tree.js";

export class SavedPrompts {
  // onOpen is called with the id of a prompt that the user opens, onDelete with that of one that was deleted, and
  // onChange with the id of the open prompt's link, or an empty string, and whether everyone finds it, when another prompt is open.
  constructor({ list, shared, search, name, status, usage, onOpen, onDelete, onChange }) {
    Object.assign(this, { list, shared, name, status, usage, onOpen, onDelete, onChange, search, current: unsaved() });
    let timer = 0;
    search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), 200);
    });
  }

  get id() { return this.current.id; }

  async refresh() {
    try {
      const { prompts, more, shared, more_shared, bytes, max_bytes } = await api.searchPrompts(this.search.value);
      this.render(prompts, more);
      this.shared.replaceChildren(...sharedRows(shared), ...(more_shared ? [lastRow(older)] : []));
      this.shared.parentElement.hidden = !shared.length;
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
    if (!prompts.length) this.list.append(lastRow(this.search.value ? "No matching prompts." : "No saved prompts yet."));
    if (more) this.list.append(lastRow(older));
  }

  // load returns a prompt that open can show, or an earlier version of it for showVersion.
  async load(id, version) {
    const prompt = await (version ? api.getVersion(id, version) : api.getPrompt(id));
    unpack(prompt.document.tree); // if this throws, what is open stays, and Save does not replace the prompt
    return prompt;
  }

  // open makes a prompt that was loaded the one that is open.
  open({ id, version, name, share, everyone, updated }) {
    this.current = { ...unsaved(), id, version };
    this.name.value = name;
    this.setSaved(updated);
    this.onChange(share, everyone);
    this.refresh();
  }

  // showVersion makes an earlier version of the open prompt the one that is shown.
  showVersion({ version, name, updated }) {
    this.current.shown = version;
    this.name.value = name;
    this.setStatus(`Version ${version}, saved ${dateTime(updated)}. Save makes it the latest.`, inUTC(updated));
  }

  // save stores the document under the name as the latest version, if it has at most that many bytes. If the prompt was deleted
  // elsewhere, it throws, and the next save creates another one. It reports whether the document is still the one that is open.
  async save(model, document_, maxBytes) {
    const { current } = this;
    const isNew = !current.id || current.isGone;
    const prompt = { name: this.name.value.trim(), model, document: document_, version: isNew ? 0 : current.version };
    const body = JSON.stringify(isNew ? { ...prompt, from: current.from } : prompt);
    const bytes = new Blob([body]).size;
    if (bytes > maxBytes) throw tooLarge(bytes, maxBytes);
    let isBehind = false; // another version was saved meanwhile
    try {
      const { id = current.id, version } = await (isNew ? this.create(body, prompt) : api.updatePrompt(current.id, body));
      if (!id || !Number.isInteger(version)) throw new Error("The answer is not that of the gateway, so nothing may have been saved.");
      isBehind = !isNew && version > current.version + 1;
      Object.assign(current, { id, version, isGone: false, shown: 0 });
    } catch (error) {
      if (!isNew && error.status === 404) current.isGone = true;
      throw error;
    }
    this.refresh();
    if (current !== this.current) return false;
    if (isNew) this.onChange("");
    this.setSaved(new Date(), isBehind ? ". It was changed elsewhere meanwhile: Versions has both." : "");
    return true;
  }

  // create creates a prompt. What it is a copy of may be gone: then it is no copy.
  create(body, prompt) {
    return api.createPrompt(body).catch((error) => {
      if (error.status !== 404) throw error;
      return api.createPrompt(JSON.stringify(prompt));
    });
  }

  // edited is called when what is shown is not what was saved any more.
  edited() {
    if (/^(Saved |$)/.test(this.status.textContent)) this.setStatus("Edited");
  }

  async delete(prompt) {
    if (!confirm(`Delete “${prompt.name}” with all its branches and versions? This cannot be undone.`)) return;
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
    this.current = { ...unsaved(), from: this.id };
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
  setSaved(time, more = "") {
    const isToday = new Date(time).toDateString() === new Date().toDateString();
    this.setStatus(`Saved ${isToday ? minute(time) : dateTime(time)}${more}`, inUTC(time));
  }
}

const older = "Older prompts are not shown: search for them.";
const lastRow = (textContent) => element("li", { className: "soft", textContent });

// unsaved returns what is known of a document that is no saved prompt yet. from is the id of the prompt or link that it is a copy of,
// shown the version that is shown if it is an earlier one, and version the latest one that this page knows.
const unsaved = () => ({ id: null, version: 0, isGone: false, shown: 0, from: undefined });

// megabytes are of 2^20 bytes, as in the limits of the gateway.
export const megabytes = (bytes) => (bytes / (1 << 20)).toLocaleString("en", { maximumFractionDigits: 1 });

const tooLarge = (bytes, most) => new api.ApiError(413, { code: "too_large", message: `This prompt with its branches takes ${megabytes(bytes)} MB, and at most ${megabytes(most)} MB can be saved.` }, 0);
