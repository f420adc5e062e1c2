// A text as its tokens, colored by likelihood. One token is the current one: the arrow keys and the pointer move it, its
// alternatives are shown at it, and Enter moves the focus to them.
import { shade } from "./measures.js";
import { partsOf } from "./tree.js";

// plainSlice returns the part of a token's text that visibleText shows from one of its characters to another.
export function plainSlice({ text }, from, to, spaces = false) {
  if (!text || text.includes("\ufffd")) return "";
  let at = 0;
  return [...text].filter((character) => {
    at += visibleText({ text: character }, spaces).length;
    return at > from && at <= to;
  }).join("");
}

// visibleText returns the text of a token with visible characters for line breaks and tabs. A token whose text is unknown,
// empty or a part of a character alone is shown as its id. Spaces are shown as dots on request.
export function visibleText(token, spaces = false) {
  if (token.text === null || token.text === undefined || token.text === "" || token.text.includes("\ufffd")) return `⟨${token.id}⟩`;
  const text = token.text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
  return spaces ? text.replaceAll(" ", "·").replaceAll("\u00a0", "⍽").replaceAll("\r", "␍") : text;
}

// textOf returns the text of tokens with visible characters for line breaks and tabs.
export function textOf(tokens) {
  const parts = partsOf(tokens);
  return tokens.map((token, i) => (parts.has(i) ? "" : visibleText(token))).join("");
}

// collapsedLength is how many characters of a prompt are shown before its continuation.
const collapsedLength = 280;

// beginOf returns the number of the first token that is shown of a prompt of that many tokens: the last lines remain.
export function beginOf(places, promptLength) {
  let shown = 0;
  let i = promptLength;
  while (i > 0 && shown < collapsedLength) shown += (places[--i].token.text ?? "").length + (places[i].token.text?.includes("\n") ? 60 : 0);
  return i;
}

// hasMoved reports whether the pointer has moved to a token, and not a token to the pointer, as when a growing text scrolls.
const at = { x: -1, y: -1 };
for (const type of ["pointermove", "pointerdown"]) globalThis.addEventListener?.(type, ({ screenX, screenY }) => { Object.assign(at, { x: screenX, y: screenY }); }, { capture: true, passive: true });
const hasMoved = ({ screenX, screenY }) => screenX !== at.x || screenY !== at.y;

// mostInRun is how many tokens without a line break are laid out together.
const mostInRun = 500;

const views = new WeakMap(); // by their boxes

// viewOf returns the TokenView of an element.
export const viewOf = (box) => views.get(box);

// TokenView shows tokens in runs, which end at line breaks: the browser lays out only the last run again while a text grows. A
// run without a line break ends after mostInRun tokens, where the next one begins a new line.
export class TokenView {
  // onMove is called with the view when another token becomes the current one, onSelect when the current one is clicked or
  // entered, and onLeave when the pointer or the focus leaves the text. The pointer moves the current token only while
  // followsPointer returns true.
  constructor(box, { onMove, onSelect, onLeave, followsPointer }) {
    this.box = box;
    views.set(box, this);
    this.places = [];
    this.begin = 0; // the number of the first token that is shown
    this.current = -1;
    this.onMove = onMove;
    box.setAttribute("role", "listbox");
    box.tabIndex = 0;
    this.marked = null; // the element of the current token
    this.elements = []; // of the tokens, from the first one that is shown
    const tokenAt = (event) => event.target.closest?.("[data-i]");
    box.addEventListener("pointerover", (event) => {
      const el = tokenAt(event);
      if (el && hasMoved(event) && followsPointer()) this.move(Number(el.dataset.i), false);
    });
    box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && document.activeElement !== box) onLeave(); });
    box.addEventListener("blur", onLeave);
    box.addEventListener("click", (event) => {
      const el = tokenAt(event);
      if (!el) return;
      this.current = Number(el.dataset.i);
      this.markCurrent();
      onSelect(this);
    });
    box.addEventListener("focus", () => { if (this.current < 0 && this.places.length) this.move(this.begin); });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (step !== undefined) {
        event.preventDefault();
        this.step(step);
      } else if (event.key === "Enter" && this.current >= 0) {
        event.preventDefault();
        onSelect(this);
      }
    });
  }

  get place() { return this.places[this.current]; }

  // step moves the current token by that many tokens.
  step(by) { this.move(Math.max(this.begin, Math.min(this.places.length - 1, this.current + by))); }

  elementAt(i) { return this.elements[i - this.begin]; }

  // removeFrom removes the elements of the tokens from a number on.
  removeFrom(i) {
    for (const el of this.elements.splice(i - this.begin)) {
      const run = el.parentElement;
      el.remove();
      if (!run.firstChild) run.remove();
    }
  }

  append(el) {
    const last = this.elements.at(-1);
    const ends = !last || last.textContent.endsWith("\n") || last.parentElement.childElementCount >= mostInRun;
    if (ends) {
      const run = document.createElement("div");
      run.setAttribute("role", "presentation");
      this.box.append(run);
    }
    this.box.lastElementChild.append(el);
    this.elements.push(el);
  }

  // render shows places as tree.path returns them, from the one numbered begin on. It keeps the elements of the unchanged
  // tokens at the beginning, so that a long text does not flicker while it grows.
  render(places, { measure, spaces = false, begin = 0 }) {
    const same = measure === this.measure && begin === this.begin && spaces === this.spaces;
    const previous = same ? this.places : [];
    if (same && previous.length === places.length && places.every((place, i) => place.token === previous[i].token && place.node === previous[i].node)) return;
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    Object.assign(this, { measure, begin, spaces });
    const parts = partsOf(places.map((place) => place.token));
    let kept = begin;
    while (kept < previous.length && kept < places.length && previous[kept].token === places[kept].token && previous[kept].node === places[kept].node) kept++;
    while (kept > begin && places[kept - 1].token.text === null) kept--; // it may have become a part of a character
    if (same) this.removeFrom(kept);
    else {
      this.box.replaceChildren();
      this.elements = [];
    }
    for (let i = kept; i < places.length; i++) this.append(this.createToken(places, i, parts.has(i)));
    this.places = places;
    if (follows) this.box.scrollTop = this.box.scrollHeight;
    if (this.current >= places.length) this.current = -1;
    this.markCurrent();
  }

  createToken(places, i, isPart) {
    const { token, node } = places[i];
    const span = document.createElement("span");
    span.id = `${this.box.id}-${i}`;
    span.dataset.i = i;
    span.setAttribute("role", "option");
    span.textContent = isPart ? "" : visibleText(token, this.spaces);
    if (isPart) span.setAttribute("aria-label", `part of a character, token ${token.id}`);
    else if (span.textContent.trim() === "") span.setAttribute("aria-label", `${span.textContent.length} spaces`);
    const level = shade(token, this.measure);
    span.className = level === null ? "token" : `token shade-${level}`;
    if (isPart) span.classList.add("part");
    if (i > 0 && places[i - 1].node !== node) span.classList.add("branch-start");
    return span;
  }

  move(i, scroll = true) {
    if (i < 0 || i >= this.places.length) return;
    this.current = i;
    this.markCurrent();
    if (scroll) this.elementAt(i).scrollIntoView({ block: "nearest" });
    this.onMove(this);
  }

  markCurrent() {
    const el = this.current < 0 ? undefined : this.elementAt(this.current);
    if (this.marked !== el) this.marked?.removeAttribute("aria-selected");
    this.marked = el;
    if (!el) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    el.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", el.id);
  }
}
