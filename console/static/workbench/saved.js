// The saved prompts: a list that is searched on the server, and which of them is open.
import * as api from "./api.js";

export class Saved {
  constructor({ list, search, name, status, onOpen, onErase }) {
    Object.assign(this, { list, name, status, onOpen, onErase, id: null, version: 0, search });
    let waiting = 0;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.refresh(), 200);
    });
  }

  async refresh() {
    try {
      const { prompts, more } = await api.prompts(this.search.value);
      this.draw(prompts, more);
    } catch (error) {
      this.say(error.message);
    }
  }

  draw(all, more) {
    this.list.replaceChildren(...all.map((one) => this.row(one)));
    const last = document.createElement("li");
    last.className = "soft";
    if (!all.length) last.textContent = this.search.value ? "Nothing that is saved has these words." : "Nothing is saved yet.";
    if (more) last.textContent = "There are older ones: search for them.";
    if (last.textContent) this.list.append(last);
  }

  row(one) {
    const item = document.createElement("li");
    const open = document.createElement("button");
    open.type = "button";
    open.className = "quiet";
    open.textContent = one.name;
    if (one.id === this.id) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => this.onOpen(one.id));
    const when = document.createElement("small");
    when.textContent = `${one.model} · ${new Date(one.updated).toLocaleString()}`;
    const erase = document.createElement("button");
    erase.type = "button";
    erase.className = "quiet";
    erase.textContent = "Delete";
    erase.setAttribute("aria-label", `Delete ${one.name}`);
    erase.addEventListener("click", () => this.erase(one));
    item.append(open, when, erase);
    return item;
  }

  async load(id) {
    const one = await api.prompt(id);
    Object.assign(this, { id: one.id, version: one.version });
    this.name.value = one.name;
    this.say("");
    this.refresh();
    return one;
  }

  // save keeps the document under the name. Somebody else's newer version is not written over: after such a refusal the
  // next save makes another one beside it.
  async save(model, document_) {
    const fields = { name: this.name.value.trim(), model, document: document_ };
    if (this.id) {
      try {
        this.version = (await api.update(this.id, { ...fields, version: this.version })).version;
      } catch (error) {
        if (error.status === 409 || error.status === 404) this.id = null;
        throw error;
      }
    } else {
      const made = await api.create(fields);
      Object.assign(this, { id: made.id, version: made.version });
    }
    this.say("Saved.");
    this.refresh();
  }

  async erase(one) {
    if (!confirm(`Delete “${one.name}” with all its branches? It cannot be brought back.`)) return;
    try {
      await api.erase(one.id);
      if (this.id === one.id) this.forget();
      this.say(`“${one.name}” is deleted.`);
      this.onErase(one.id);
    } catch (error) {
      this.say(error.message);
    }
    this.refresh();
  }

  forget() {
    Object.assign(this, { id: null, version: 0 });
    this.name.value = "";
    this.say("");
  }

  say(words) { this.status.textContent = words; }
}
