// Drafts: what is not saved on the server is kept in the browser, for each account, saved prompt and tab, until it is saved, or
// the user discards it or signs out (see console.js).
import * as store from "./draftstore.js";
import * as tree from "./tree.js";
import { discard, keep, keepRemoval, migrate } from "./localdrafts.js";
import { openTabs, takeTab } from "./tabs.js";

const pause = 500; // milliseconds from a change until it is stored
const retry = 5000; // milliseconds until the draft is stored again after the browser had no room

const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(36)).join("-");

// withPrompt returns a document with the text that earlier versions of the workbench kept beside it.
function withPrompt(doc, prompt) {
  const root = tree.rootOf(doc, doc.selected);
  return !prompt || root.role || root.text === prompt ? doc : tree.select(...tree.ensureRoot(doc, prompt, null));
}

export class Drafts {
  // promptId returns the id of the prompt that is open, or null. content returns what to keep as {doc, ...fields}, or a falsy value
  // if everything is saved. tell is called with null when the draft is stored, and with an error when it is not.
  constructor(account, promptId, content, tell) {
    Object.assign(this, { account, promptId, content, tell, owner: newId(), tab: null, earlier: false, stopped: false, whole: true });
    Object.assign(this, { db: null, timer: 0, revision: 0, stored: 0, queue: Promise.resolve() });
    this.forget();
    document.addEventListener("sign-out", async ({ detail }) => {
      this.stopped = true;
      await this.remove();
      if (detail === "elsewhere" && this.stopped) this.whole = !this.content(); // the tab that signs out itself leaves without a question
    });
    document.addEventListener("sign-in", () => {
      if (!this.stopped) return;
      this.stopped = false;
      this.flush();
    });
  }

  // start chooses the number of the tab, and takes over what earlier versions have stored. Before, nothing is stored.
  async start() {
    Object.assign(this, await takeTab(this.account).catch(() => ({}))); // storage may be disabled
    try {
      this.db = await store.openStore();
      await migrate(this.db);
    } catch { /* it is tried again with the first draft */ }
    this.started = true;
  }

  // forget makes what comes next another draft. written has the nodes of a draft as they are stored, by their ids.
  forget() { Object.assign(this, { draft: { id: newId(), written: new Map() }, kept: 0 }); }

  get prompt() { return this.promptId() ?? "new"; }

  // schedule stores the draft soon.
  schedule() {
    this.revision++;
    this.timer ||= setTimeout(() => this.flush(), pause);
  }

  // then runs a task after those before it.
  then(task) {
    this.queue = this.queue.then(task, task);
    return this.queue;
  }

  // flush stores the draft, and resolves to false if the browser does not take it.
  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    return this.then(() => this.store());
  }

  async store() {
    const content = this.content();
    if (!content || !this.started) return true;
    if (this.stopped) return (this.whole = false);
    const { revision, draft, prompt } = this; // the user may open another document at every await
    try {
      this.db ??= await store.openStore();
      const tx = store.write(this.db);
      tx.done.catch(() => { /* the error is that of a request, or of commit */ });
      const record = await tx.objectStore("drafts").get(draft.id);
      if (draft !== this.draft) return this.whole; // it was saved or discarded meanwhile
      if (record && record.owner !== this.owner) this.forget(); // another tab, which did not see that this one is open, has taken it over
      if (!record) draft.written.clear(); // another tab has signed out meanwhile
      const { draft: kept } = this;
      store.put(tx, ...this.changes(content, prompt, revision));
      await tx.done;
      kept.written = new Map(Object.entries(content.doc.nodes));
      Object.assign(this, { whole: true, stored: revision });
      this.tell(null);
    } catch (error) {
      this.db?.close(); // the user may have deleted the data of the site
      Object.assign(this, { db: null, whole: false });
      draft.written = new Map();
      this.tell(error);
      this.timer ||= setTimeout(() => this.flush(), retry);
    }
    return this.whole;
  }

  // changes returns the draft of a prompt at a revision, the nodes that have changed since it was stored, and the ids of those that
  // were removed.
  changes({ doc, ...fields }, prompt, revision) {
    const { account, draft: { id, written }, owner, tab } = this;
    const changed = doc.order.filter((node) => written.get(node) !== doc.nodes[node]).map((node) => tree.packNode(doc.nodes[node]));
    const removed = [...written.keys()].filter((node) => !doc.nodes[node]);
    return [{ account, id, owner, prompt, tab, revision, time: Date.now(), order: doc.order, selected: doc.selected, next: doc.next, fields }, changed, removed];
  }

  // keepLast keeps the last changes where nothing must be waited for, and reports whether leaving the page now loses nothing: there is
  // little room for them.
  keepLast() {
    const content = this.content();
    if (this.stored === this.revision || this.kept === this.revision || !content || this.stopped || !this.started) return this.whole;
    try {
      keep(...this.changes(content, this.prompt, this.revision), this.draft.written.size === 0);
      this.kept = this.revision;
    } catch { return false; }
    return this.whole;
  }

  // leave stores the draft while the page is left, when nothing can be waited for. What is kept is not stored too: that may be late, and
  // replace the draft of a tab that has taken it over.
  leave() {
    this.keepLast();
    const content = this.content();
    if ([this.stored, this.kept].includes(this.revision) || !content || this.stopped || !this.started) return;
    try {
      const tx = store.write(this.db);
      tx.done.catch(() => {});
      store.put(tx, ...this.changes(content, this.prompt, this.revision));
      tx.commit();
    } catch { /* storage may be disabled */ }
  }

  // read returns the draft that this tab has of the prompt that is open, or else the newest one of a closed tab, which becomes that
  // of this tab: {doc, time, …}. null: there is none, or another prompt has been opened meanwhile.
  read() {
    return this.then(async () => {
      const { account, prompt } = this;
      try {
        const open = await openTabs();
        const tx = store.write(this.db);
        const stored = await store.draftsOf(tx, account, prompt);
        const current = stored.find(({ id }) => id === this.draft.id); // what was typed while the page was loaded, which it shows
        const drafts = stored.filter((other) => other !== current);
        const isOwn = ({ tab }) => tab !== null && tab === this.tab;
        const draft = (this.earlier && drafts.find(isOwn)) || drafts.find((other) => isOwn(other) || !open.has(other.tab)); // a new tab may have the number of a closed one
        if (!draft || prompt !== this.prompt) { tx.commit(); return null; }
        if (current) { store.remove(tx, current.id); this.schedule(); }
        for (const other of drafts.filter(isOwn)) store.putRecord(tx, { ...other, tab: null });
        store.putRecord(tx, { ...draft, tab: this.tab, owner: this.owner, revision: this.revision });
        await tx.done;
        const nodes = (await store.nodes(this.db, draft)).map(tree.unpackNode);
        if (prompt !== this.prompt || !nodes.length) return null;
        const doc = tree.fromNodes(nodes, draft.selected, draft.next);
        this.draft = { id: draft.id, written: new Map(Object.entries(doc.nodes)) };
        return { ...draft.fields, doc: withPrompt(doc, draft.fields.prompt), time: draft.time };
      } catch {
        return null; // storage may be disabled
      }
    });
  }

  // remove deletes the draft, unless another tab has taken it over. What is kept next is another one.
  remove() {
    clearTimeout(this.timer);
    this.timer = 0;
    const { draft: { id }, owner } = this;
    this.forget();
    try { keepRemoval(id, owner); } catch { /* storage may be disabled */ }
    return this.then(async () => {
      try {
        const tx = store.write(this.db);
        if ((await tx.objectStore("drafts").get(id))?.owner === owner) store.remove(tx, id);
        await tx.done;
        discard(id);
      } catch { /* storage may be disabled */ }
    });
  }
}
