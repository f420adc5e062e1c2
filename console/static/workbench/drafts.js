// Drafts: what is not saved on the server is kept in the browser's storage, for each account, saved prompt and tab, until the
// prompt is saved or the user signs out (see console.js).
export const draftPrefix = "basegate-draft:";

// A tab has a number, so that two tabs do not replace each other's drafts. It holds a lock on its number until it is closed, also
// while it shows another page: see console.js, which finds the lock's name in the storage of the tab.
const lockPrefix = "basegate-workbench-tab:";
const lockKey = "basegate-workbench-tab";
const leavingKey = "basegate-workbench-leaving"; // stored while the tab goes from page to page, so a copy of the tab lacks it
const reloading = 30_000; // milliseconds for which a tab that is loaded again waits for the lock that it had, which a slow machine releases late

// hold takes a lock until the page is left, and reports whether it could.
function hold(name, options) {
  return new Promise((resolve, reject) => {
    const held = (lock) => { resolve(Boolean(lock)); return lock && new Promise(() => {}); };
    navigator.locks.request(name, options, held).catch(reject);
  });
}

// takeNumber returns the number that this tab had before it was loaded again, or else the lowest one that no other tab has, and
// whether it is the earlier one. Browsers have locks on secure origins only: elsewhere, all tabs have the number 0.
async function takeNumber(prefix) {
  if (!navigator.locks) return { number: 0, earlier: true };
  const stored = sessionStorage.getItem(lockKey);
  const again = sessionStorage.getItem(leavingKey) !== null;
  sessionStorage.removeItem(leavingKey);
  addEventListener("pagehide", () => { try { sessionStorage.setItem(leavingKey, ""); } catch { /* it waits for nothing then */ } });
  const options = again ? { signal: AbortSignal.timeout(reloading) } : { ifAvailable: true };
  if (stored?.startsWith(prefix) && await hold(stored, options).catch(() => false)) {
    return { number: Number(stored.slice(prefix.length)), earlier: true };
  }
  let number = 0;
  while (!await hold(prefix + number, { ifAvailable: true })) number++;
  try { sessionStorage.setItem(lockKey, prefix + number); } catch { /* the number is another one after a reload */ }
  return { number, earlier: false };
}

// parse returns a stored draft, or null.
function parse(text) {
  try { return JSON.parse(text); } catch { return null; }
}

export class Drafts {
  // savedId returns the id of the saved prompt that is open, or null. content returns what to keep, with the tree as JSON, or a
  // falsy value if everything is saved. warn shows a text.
  constructor(account, savedId, content, warn) {
    Object.assign(this, { account, savedId, content, warn, number: null, earlier: false, timer: 0, whole: true, stopped: false });
    document.addEventListener("sign-out", () => { this.stopped = true; });
    document.addEventListener("sign-in", () => { this.stopped = false; });
  }

  // start chooses the number of the tab. Before, nothing is stored.
  async start() {
    Object.assign(this, await takeNumber(this.lockPrefix).catch(() => ({ number: 0, earlier: true }))); // storage may be disabled
  }

  get lockPrefix() { return `${lockPrefix}${this.account}:`; }

  // prefix is the key of the tab with number 0.
  get prefix() { return `${draftPrefix}${this.account}:${this.savedId() ?? "new"}`; }

  get key() { return this.number ? `${this.prefix}#${this.number}` : this.prefix; }

  // schedule stores the draft soon.
  schedule() {
    this.timer ||= setTimeout(() => this.flush(), 500);
  }

  // flush stores the draft. It returns false if the browser does not take it.
  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const content = this.content();
    if (!content || this.stopped || this.number === null) return true;
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

  // read returns the draft of this tab, or else the newest one of a closed tab, which becomes that of this tab. null: there is none,
  // or another prompt has been opened meanwhile.
  async read() {
    try {
      const { key } = this;
      const own = this.earlier ? localStorage.getItem(key) : null; // a new tab may have the number of a closed one
      const draft = parse(own ?? await this.takeOver());
      return this.key === key ? draft : null;
    } catch {
      return null; // storage may be disabled
    }
  }

  // takeOver makes the newest draft that a closed tab has left that of this tab, and returns it. If there was one already, which then
  // is of a closed tab too, they change places.
  async takeOver() {
    const { key, prefix } = this;
    const open = new Set((await navigator.locks?.query())?.held.map((lock) => lock.name));
    const isLeft = (k) => k === key || (k === prefix && !open.has(`${this.lockPrefix}0`))
      || (k.startsWith(`${prefix}#`) && !open.has(this.lockPrefix + k.slice(prefix.length + 1)));
    const time = (k) => parse(localStorage.getItem(k))?.time ?? 0;
    const newest = Object.keys(localStorage).filter(isLeft).sort((a, b) => time(b) - time(a))[0];
    if (!newest || newest === key) return newest && localStorage.getItem(key);
    const [draft, older] = [localStorage.getItem(newest), localStorage.getItem(key)];
    try {
      localStorage.removeItem(newest); // first: the storage may have no room for both
      localStorage.setItem(key, draft);
      if (older !== null) localStorage.setItem(newest, older);
    } catch { // another tab has taken the room
      localStorage.setItem(newest, draft);
    }
    return draft;
  }

  remove() {
    clearTimeout(this.timer);
    this.timer = 0;
    try { localStorage.removeItem(this.key); } catch { /* storage may be disabled */ }
  }
}
