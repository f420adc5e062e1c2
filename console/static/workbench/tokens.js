// A text as its tokens, colored by likelihood. One token is the current one: the arrow keys and the pointer move it, its
// alternatives are shown beside the text, and Enter moves the focus to them.
import { entropy, percent, probability, rank, shade, surprisal } from "./measures.js";

// visibleText returns the text of a token with visible characters for line breaks and tabs. A token whose text is unknown,
// empty or a part of a character is shown as its id.
export function visibleText(token) {
  if (token.text === null || token.text === undefined || token.text === "" || token.text.includes("\ufffd")) return `⟨${token.id}⟩`;
  return token.text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}

export class TokenView {
  // onMove is called with the place of the token that becomes the current one, onSelect with the place of a token that is
  // clicked or entered, and the box. The pointer moves the current token only while followsPointer returns true.
  constructor(box, { onMove, onSelect, followsPointer }) {
    this.box = box;
    this.places = [];
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
    box.addEventListener("focus", () => { if (this.current < 0 && this.places.length) this.move(0); });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (step !== undefined) {
        event.preventDefault();
        this.move(Math.max(0, Math.min(this.places.length - 1, this.current + step)));
      } else if (event.key === "Enter" && this.current >= 0) {
        event.preventDefault();
        onSelect(this.places[this.current], box);
      }
    });
  }

  // render shows places as tree.path returns them. It keeps the elements of the unchanged tokens at the beginning, so that a
  // long text does not flicker while it grows.
  render(places, measure) {
    const previous = measure === this.measure ? this.places : [];
    this.measure = measure;
    let kept = 0;
    while (kept < previous.length && kept < places.length && previous[kept].token === places[kept].token && previous[kept].node === places[kept].node) kept++;
    while (this.box.childNodes.length > kept) this.box.lastChild.remove();
    const added = document.createDocumentFragment();
    for (let i = kept; i < places.length; i++) added.append(this.createToken(places, i));
    this.box.append(added);
    this.places = places;
    if (this.current >= places.length) this.current = -1;
    this.markCurrent();
  }

  createToken(places, i) {
    const { token, node } = places[i];
    const span = document.createElement("span");
    span.id = `${this.box.id}-${i}`;
    span.dataset.i = i;
    span.setAttribute("role", "option");
    span.textContent = visibleText(token);
    if (span.textContent.trim() === "") span.setAttribute("aria-label", `${span.textContent.length} spaces`);
    const level = shade(token, this.measure);
    span.className = level === null ? "token" : `token shade-${level}`;
    if (i > 0 && places[i - 1].node !== node) span.classList.add("branch-start");
    return span;
  }

  move(i, scroll = true) {
    if (i < 0 || i >= this.places.length) return;
    this.current = i;
    this.markCurrent();
    if (scroll) this.box.childNodes[i].scrollIntoView({ block: "nearest" });
    this.onMove(this.places[i]);
  }

  markCurrent() {
    for (const el of this.box.querySelectorAll("[aria-selected]")) el.removeAttribute("aria-selected");
    const el = this.box.childNodes[this.current];
    if (!el) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    el.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", el.id);
  }
}

const format = (value, digits, unit) => (value === null ? "not known" : `${value.toFixed(digits)}${unit}`);

// renderDetails shows a token's measures and its alternatives. textOf returns the text of a token id. choose is called with
// the alternative that the user clicks. An alternative that has the focus keeps it.
export function renderDetails(box, { token }, textOf, choose, pinned) {
  const focusedId = box.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  const heading = document.createElement("h3");
  heading.textContent = "Token ";
  const code = document.createElement("code");
  code.textContent = visibleText({ ...token, text: textOf(token.id) ?? token.text });
  heading.append(code);
  const facts = document.createElement("p");
  facts.className = "soft";
  facts.textContent = typeof token.logprob === "number"
    ? `id ${token.id} · probability ${percent(token.logprob)} · ${surprisal(token.logprob).toFixed(2)} bits · rank ${rank(token) ?? `below ${token.top?.length ?? 0}`} · entropy ${format(entropy(token), 2, " bits or more")}`
    : `id ${token.id} · its probability is not known; Score finds it for a prompt`;
  box.replaceChildren(heading, facts);
  if (pinned) {
    const note = document.createElement("p");
    note.className = "soft";
    note.textContent = "It stays here until Escape, or another click on it.";
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
    name.textContent = visibleText({ id: alternative.id, text: textOf(alternative.id) });
    const bar = document.createElement("meter");
    bar.max = 1;
    bar.value = probability(alternative.logprob);
    bar.setAttribute("aria-hidden", "true");
    const chance = document.createElement("span");
    chance.className = "n";
    chance.textContent = percent(alternative.logprob);
    const label = document.createElement("span");
    label.className = "visually-hidden";
    label.textContent = alternative.id === token.id ? "What stands there: " : "Continue with ";
    button.append(label, name, bar, chance);
    button.disabled = alternative.id === token.id;
    button.addEventListener("click", () => choose(alternative));
    item.append(button);
    list.append(item);
  }
  box.append(list);
  if (focusedId !== undefined) box.querySelector(`[data-id="${focusedId}"]:enabled`)?.focus();
}
