// Drafts: what is not saved on the server is kept in the browser's storage, for each account and each saved prompt, until the
// prompt is saved or the user signs out (see console.js).
export const draftPrefix = "basegate-draft:";

export class Drafts {
  // savedId returns the id of the saved prompt that is open, or null. content returns what to keep, with the tree as JSON, or a
  // falsy value if everything is saved. warn shows a text.
  constructor(account, savedId, content, warn) {
    Object.assign(this, { account, savedId, content, warn, timer: 0, whole: true, stopped: false });
    document.addEventListener("sign-out", () => { this.stopped = true; });
  }

  get key() { return `${draftPrefix}${this.account}:${this.savedId() ?? "new"}`; }

  // schedule stores the draft soon.
  schedule() {
    this.timer ||= setTimeout(() => this.flush(), 500);
  }

  // flush stores the draft. It returns false if the browser does not take it.
  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const content = this.content();
    if (!content || this.stopped) return true;
    try {
      const { tree, ...fields } = content;
      localStorage.setItem(this.key, `${JSON.stringify({ ...fields, time: Date.now() }).slice(0, -1)},"tree":${tree}}`);
      this.whole = true;
    } catch {
      if (this.whole) this.warn("This draft is too large for the browser to keep. Save it, so that it is not lost.");
      this.whole = false;
    }
    return this.whole;
  }

  // read returns the draft, or null.
  read() {
    try {
      return JSON.parse(localStorage.getItem(this.key));
    } catch {
      return null;
    }
  }

  remove() {
    clearTimeout(this.timer);
    this.timer = 0;
    try { localStorage.removeItem(this.key); } catch { /* storage may be disabled */ }
  }
}
