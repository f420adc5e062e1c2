// A text as its tokens, colored by likelihood. One token is the current one: the arrow keys and the pointer move it, its
// alternatives are shown at it, and Enter moves the focus to them. The page has the text as it is: marks are CSS.
import { shade } from "./measures.js";
import { isSpecial, partsOf } from "./tree.js";

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

const marks = { "\n": "↵", "\t": "⇥", "\r": "␍", " ": "·", "\u00a0": "⍽" };

// appendText adds a text to an element, with marks for line breaks and tabs, and on request for spaces.
function appendText(el, text, spaces) {
  for (const piece of text.split(spaces ? /([\n\t\r \u00a0])/ : /([\n\t])/)) {
    if (!(piece in marks) || (!spaces && /[\r \u00a0]/.test(piece))) { el.append(piece); continue; }
    const mark = document.createElement("span");
    mark.className = piece === " " || piece === "\u00a0" ? "white space" : "white";
    mark.dataset.mark = marks[piece];
    mark.append(piece);
    el.append(mark);
  }
}

// textIn returns the text of a range of tokens, without what is no part of it.
export function textIn(range) {
  const copy = range.cloneContents();
  for (const el of copy.querySelectorAll("[contenteditable=false], .chip, br.end")) el.remove();
  for (const br of copy.querySelectorAll("br")) br.replaceWith("\n");
  return copy.textContent;
}

// hasMoved reports whether the pointer has moved to a token, and not a token to the pointer, as when a growing text scrolls.
const at = { x: -1, y: -1 };
for (const type of ["pointermove", "pointerdown"]) globalThis.addEventListener?.(type, ({ screenX, screenY }) => { Object.assign(at, { x: screenX, y: screenY }); }, { capture: true, passive: true });
const hasMoved = ({ screenX, screenY }) => screenX !== at.x || screenY !== at.y;

// mostInRun is how many tokens without a line break are laid out together.
const mostInRun = 500;

// isSame reports whether two places look the same.
const isSame = (a, b) => a.node === b.node && (a.token === b.token || (a.token.id === null && b.token.id === null && a.token.text === b.token.text));

// TokenView shows tokens in runs, which end at line breaks: the browser lays out only the last run again while a text grows. A
// run without a line break ends after mostInRun tokens, where the next one begins a new line.
export class TokenView {
  // onMove is called with the view when another token becomes the current one, onSelect when the current one is clicked or
  // entered, and onLeave when the pointer or the focus leaves the text. The pointer moves the current token only while
  // followsPointer returns true. In a text that can be edited, the keys are those of a text field.
  constructor(box, { onMove, onSelect, onLeave, followsPointer, isEditable = false }) {
    Object.assign(this, { box, isEditable });
    this.places = [];
    this.begin = 0; // the number of the first token that is shown
    this.current = -1;
    this.onMove = onMove;
    this.marked = null; // the element of the current token
    this.elements = []; // of the tokens, from the first one that is shown
    const tokenAt = (event) => event.target.closest?.("[data-i]");
    box.addEventListener("pointerover", (event) => {
      const el = tokenAt(event);
      if (el && hasMoved(event) && followsPointer()) this.move(Number(el.dataset.i), false);
    });
    box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && (isEditable || document.activeElement !== box)) onLeave(); });
    box.addEventListener("blur", onLeave);
    box.addEventListener("click", (event) => {
      const el = tokenAt(event);
      if (!el) return;
      this.current = Number(el.dataset.i);
      this.markCurrent();
      onSelect(this);
    });
    if (isEditable) return;
    box.setAttribute("role", "listbox");
    box.tabIndex = 0;
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
      if (!run.querySelector("[data-i]")) run.remove();
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

  // clear removes what is shown, so that everything is shown again.
  clear() {
    this.box.replaceChildren();
    this.elements = [];
    this.places = [];
  }

  // render shows places as tree.path returns them, from the one numbered begin on. A place may have a className instead of its
  // shade. It keeps the elements of the unchanged tokens at the beginning, so that a long text does not flicker while it grows.
  render(places, { measure, spaces = false, begin = 0 }) {
    const same = measure === this.measure && begin === this.begin && spaces === this.spaces;
    const previous = same ? this.places : [];
    if (same && previous.length === places.length && places.every((place, i) => isSame(place, previous[i]))) { this.places = places; return; }
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    Object.assign(this, { measure, begin, spaces });
    const parts = partsOf(places.map((place) => place.token));
    let kept = begin;
    while (kept < previous.length && kept < places.length && isSame(previous[kept], places[kept])) kept++;
    while (kept > begin && places[kept - 1].token.text === null) kept--; // it may have become a part of a character
    if (same) this.removeFrom(kept);
    else this.clear();
    for (let i = kept; i < places.length; i++) this.append(this.createToken(places, i, parts.has(i)));
    this.places = places;
    if (follows) this.box.scrollTop = this.box.scrollHeight;
    if (this.current >= places.length) this.current = -1;
    this.markCurrent();
  }

  createToken(places, i, isPart) {
    const { token, node, className } = places[i];
    const span = document.createElement("span");
    span.id = `${this.box.id}-${i}`;
    span.dataset.i = i;
    const hasText = Boolean(token.text) && !token.text.includes("\ufffd");
    const isChip = token.id !== null && !isPart && (isSpecial(token) || !hasText);
    if (isChip) span.dataset.mark = visibleText(token);
    else if (!isPart) appendText(span, token.text, this.spaces);
    if (this.isEditable) { if (isChip || isPart) span.contentEditable = "false"; } else {
      span.setAttribute("role", "option");
      if (isChip) span.setAttribute("aria-label", span.dataset.mark);
      else if (isPart) span.setAttribute("aria-label", `part of a character, token ${token.id}`);
      else if (span.textContent.trim() === "") span.setAttribute("aria-label", `${span.textContent.length} spaces`);
    }
    const level = shade(token, this.measure);
    span.className = `token ${className ?? (level === null ? "" : `shade-${level}`)}`.trim();
    if (isPart) span.classList.add("part");
    if (isChip) span.classList.add("chip");
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

  // unmark leaves no token the current one.
  unmark() {
    this.current = -1;
    this.markCurrent();
  }

  markCurrent() {
    const el = this.current < 0 ? undefined : this.elementAt(this.current);
    if (this.marked !== el) {
      this.marked?.removeAttribute("aria-selected");
      this.marked?.classList.remove("current");
    }
    this.marked = el;
    el?.classList.add("current");
    if (this.isEditable) return;
    if (!el) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    el.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", el.id);
  }
}
