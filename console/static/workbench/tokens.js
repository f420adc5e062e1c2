// A text as its tokens, colored by likelihood. One token is the current one: the arrow keys and the pointer move it, its
// alternatives are shown beside the text, and Enter moves the focus to them.
import { entropy, percent, probability, rank, shade, surprisal } from "./measures.js";

// visibleText returns the text of a token with visible characters for line breaks and tabs. A token whose text is unknown,
// empty or a part of a character alone is shown as its id.
export function visibleText(token) {
  if (token.text === null || token.text === undefined || token.text === "" || token.text.includes("\ufffd")) return `⟨${token.id}⟩`;
  return token.text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}

// partsOf returns the numbers of the tokens that are parts of a character, which the last one of them shows.
export function partsOf(tokens) {
  const parts = new Set();
  tokens.forEach((token, i) => { for (let n = 1; n <= (token.joins ?? 0); n++) parts.add(i - n); });
  return parts;
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

export class TokenView {
  // onMove is called with the place of the token that becomes the current one, onSelect with the place of a token that is
  // clicked or entered, and the box. The pointer moves the current token only while followsPointer returns true.
  constructor(box, { onMove, onSelect, followsPointer }) {
    this.box = box;
    this.places = [];
    this.begin = 0; // the number of the first token that is shown
    this.current = -1;
    this.onMove = onMove;
    box.setAttribute("role", "listbox");
    box.tabIndex = 0;
    const tokenAt = (event) => event.target.closest?.("[data-i]");
    box.addEventListener("pointerover", (event) => {
      const el = tokenAt(event);
      if (el && followsPointer()) this.move(Number(el.dataset.i), false);
    });
    box.addEventListener("click", (event) => {
      const el = tokenAt(event);
      if (!el) return;
      this.current = Number(el.dataset.i);
      this.markCurrent();
      onSelect(this.places[this.current], box);
    });
    box.addEventListener("focus", () => { if (this.current < 0 && this.places.length) this.move(this.begin); });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (step !== undefined) {
        event.preventDefault();
        this.move(Math.max(this.begin, Math.min(this.places.length - 1, this.current + step)));
      } else if (event.key === "Enter" && this.current >= 0) {
        event.preventDefault();
        onSelect(this.places[this.current], box);
      }
    });
  }

  // render shows places as tree.path returns them, from one of them on. It keeps the elements of the unchanged tokens at the beginning, so that a
  // long text does not flicker while it grows.
  render(places, measure, begin = 0) {
    const follows = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    const previous = measure === this.measure && begin === this.begin ? this.places : [];
    Object.assign(this, { measure, begin });
    const parts = partsOf(places.map((place) => place.token));
    let kept = begin;
    while (kept < previous.length && kept < places.length && previous[kept].token === places[kept].token && previous[kept].node === places[kept].node) kept++;
    while (kept > begin && places[kept - 1].token.text === null) kept--; // it may have become a part of a character
    while (this.box.childNodes.length > kept - begin) this.box.lastChild.remove();
    const added = document.createDocumentFragment();
    for (let i = kept; i < places.length; i++) added.append(this.createToken(places, i, parts.has(i)));
    this.box.append(added);
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
    span.textContent = isPart ? "" : visibleText(token);
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
    if (scroll) this.box.childNodes[i - this.begin].scrollIntoView({ block: "nearest" });
    this.onMove(this.places[i]);
  }

  markCurrent() {
    for (const el of this.box.querySelectorAll("[aria-selected]")) el.removeAttribute("aria-selected");
    const el = this.box.childNodes[this.current - this.begin];
    if (!el) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    el.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", el.id);
  }
}

const format = (value, digits, unit) => (value === null ? "unknown" : `${value.toFixed(digits)}${unit}`);

// renderDetails shows a token's measures and its alternatives. textById returns the text of a token id. choose is called with
// the alternative that the user clicks. An alternative that has the focus keeps it.
export function renderDetails(box, { token }, textById, choose, pinned) {
  const focusedId = box.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  const heading = document.createElement("h3");
  heading.textContent = "Token ";
  const code = document.createElement("code");
  code.textContent = token.joins ? visibleText(token) : visibleText({ ...token, text: textById(token.id) ?? token.text });
  heading.append(code);
  const facts = document.createElement("p");
  facts.className = "soft";
  facts.textContent = typeof token.logprob === "number"
    ? `id ${token.id} · probability ${percent(token.logprob)} · ${surprisal(token.logprob).toFixed(2)} bits · rank ${rank(token) ?? `below ${token.top?.length ?? 0}`} · entropy ${format(entropy(token), 2, " bits or more")}`
    : `id ${token.id} · no probability yet: “Score” finds those of a prompt`;
  box.replaceChildren(heading, facts);
  if (pinned) {
    const note = document.createElement("p");
    note.className = "soft";
    note.textContent = "Pinned. Esc or click to unpin";
    box.append(note);
  }
  if (!token.top?.length) return;
  const list = document.createElement("ul");
  list.className = "alternatives";
  for (const alternative of token.top) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.id = alternative.id;
    const name = document.createElement("code");
    name.textContent = visibleText({ id: alternative.id, text: textById(alternative.id) });
    const bar = document.createElement("meter");
    bar.max = 1;
    bar.value = probability(alternative.logprob);
    bar.setAttribute("aria-hidden", "true");
    const chance = document.createElement("span");
    chance.className = "n";
    chance.textContent = percent(alternative.logprob);
    const label = document.createElement("span");
    label.className = "visually-hidden";
    label.textContent = alternative.id === token.id ? "Current: " : "Continue with ";
    button.append(label, name, bar, chance);
    button.disabled = alternative.id === token.id;
    button.addEventListener("click", () => choose(alternative));
    item.append(button);
    list.append(item);
  }
  box.append(list);
  if (focusedId !== undefined) box.querySelector(`[data-id="${focusedId}"]:enabled`)?.focus();
}
