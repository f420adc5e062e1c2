// The command palette (Ctrl+K or Cmd+K), the sheet of keyboard shortcuts (?), and the shortcuts themselves.

const dialog = document.getElementById("palette");
const sheet = document.getElementById("shortcuts");
const input = document.getElementById("palette-input");
const list = document.getElementById("palette-list");
const state = document.getElementById("palette-state");
const shownAtMost = 50;
let items = [];
let loading = 0; // number of the last load, so that an earlier one that ends later has no effect
let active = -1;
let isLoaded = false;
let entered = false; // Enter was pressed before the list was loaded

/** score tells how well an item matches the words; 0 if one of them is missing. */
function score(item, words) {
  const name = item.name.toLowerCase();
  const text = `${name} ${item.kind} ${item.note}`.toLowerCase();
  let sum = 1;
  for (const word of words) {
    if (!text.includes(word)) return 0;
    if (name.startsWith(word)) sum += 3;
    else if (name.includes(word)) sum += 2;
  }
  return sum;
}

function show() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = items.map((item) => ({ item, points: score(item, words) })).filter(({ points }) => points > 0)
    .sort((a, b) => b.points - a.points).slice(0, shownAtMost);
  list.replaceChildren(...found.map(({ item }, i) => {
    const option = document.createElement("a");
    Object.assign(option, { id: `palette-${i}`, href: item.path ?? "#", tabIndex: -1 });
    option.setAttribute("role", "option");
    const [kind, name, note] = [["soft", item.kind], ["name", item.name], ["soft", item.note]].map(([className, text]) => {
      const span = document.createElement("span");
      Object.assign(span, { className, textContent: text });
      return span;
    });
    option.append(name, " ", note, " ", kind);
    option.addEventListener("click", (event) => {
      dialog.close();
      if (!item.run && !item.post) return;
      event.preventDefault();
      if (item.run) item.run();
      else submit(item.path);
    });
    return option;
  }));
  if (items.length) state.textContent = found.length ? `${found.length} found` : "Nothing found.";
  select(found.length ? 0 : -1);
}

// submit sends what a form of the page would: the gateway answers with the page that shows what was done.
function submit(action) {
  const form = Object.assign(document.createElement("form"), { method: "post", action });
  document.body.append(form);
  form.submit();
}

function select(index) {
  list.children[active]?.setAttribute("aria-selected", "false");
  active = index;
  const option = list.children[active];
  for (const other of list.children) other.setAttribute("aria-selected", String(other === option));
  if (option) {
    input.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
  } else input.removeAttribute("aria-activedescendant");
}

async function open() {
  if (dialog.open || document.querySelector("dialog[open]")) return;
  input.value = "";
  isLoaded = entered = false;
  dialog.showModal();
  show();
  const own = ++loading;
  state.textContent = "Loading…";
  try {
    const response = await fetch("/console/api/palette");
    if (own !== loading) return;
    if (response.status === 401) {
      state.textContent = "Your session has ended. Reload the page to sign in again.";
      return;
    }
    if (!response.ok) throw new Error(`status ${response.status}`);
    ({ items } = await response.json());
    document.dispatchEvent(new CustomEvent("palette", { detail: items })); // a page adds what can be done on it
    isLoaded = true;
    show();
    if (entered && dialog.open) list.children[active]?.click();
  } catch {
    if (own === loading) state.textContent = "The list cannot be loaded. Close it and try again.";
  }
}

input.addEventListener("input", show);
input.addEventListener("keydown", (event) => {
  const last = list.children.length - 1;
  const next = { ArrowDown: active >= last ? 0 : active + 1, ArrowUp: active <= 0 ? last : active - 1, PageDown: last, PageUp: 0 }[event.key];
  if (next !== undefined && last >= 0) {
    event.preventDefault();
    select(next);
  } else if (event.key === "Enter" && !event.isComposing) {
    event.preventDefault();
    if (isLoaded) list.children[active]?.click();
    else entered = true;
  }
});
for (const box of [dialog, sheet]) {
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); }); // the backdrop
}

// The shortcuts of one key can be switched off, for those who use speech input or a screen reader.
const toggle = document.getElementById("single-keys");
const stored = "basegate-single-keys";
try { toggle.checked = localStorage.getItem(stored) !== "off"; } catch { /* storage may be disabled */ }
toggle.addEventListener("change", () => {
  try { localStorage.setItem(stored, toggle.checked ? "on" : "off"); } catch { /* the choice applies to this page only */ }
});

// The focus stays in a dialog that was closed until the next frame: its keys are no text.
const typing = (target) => target.checkVisibility?.() && target.closest("input, select, textarea, [contenteditable], [role=listbox], [role=tree]");
let afterG = false; // the last key was g

function singleKey(event) {
  const key = event.key;
  if (afterG) {
    afterG = false;
    const link = document.querySelector(`[data-go="${CSS.escape(key)}"]`);
    if (link) {
      event.preventDefault();
      location.assign(link.dataset.path);
    }
    return;
  }
  if (key === "g") afterG = true;
  if (key === "?") {
    event.preventDefault();
    sheet.showModal();
  }
  const search = key === "/" && document.querySelector("main input[type=search]");
  if (search) {
    event.preventDefault();
    search.focus();
  }
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented) return;
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
    event.preventDefault();
    open();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || !toggle.checked) return;
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  singleKey(event);
});

for (const button of document.querySelectorAll("[data-open-palette]")) {
  button.hidden = false;
  button.addEventListener("click", open);
}
for (const button of document.querySelectorAll("[data-open-shortcuts]")) {
  button.hidden = false;
  button.addEventListener("click", () => sheet.showModal());
}
