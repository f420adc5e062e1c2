// A run of text as its tokens, coloured by how likely each was. One of them is the current one: the arrow keys and the
// pointer move it, what it could have been is shown beside, and Enter opens that to choose from.
import { entropy, percent, probability, rank, shade, surprisal } from "./measures.js";

// visible shows what would not be seen: a line break, a space at an end, a part of a character.
export function visible(token) {
  if (token.text === null || token.text === undefined || token.text === "" || token.text.includes("\ufffd")) return `⟨${token.id}⟩`;
  return token.text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}

export class TokenView {
  // onPick is told the place of a token that is opened, and the box it is in, onMove of one that is gone to. The pointer
  // goes to a token only while follows says so.
  constructor(box, { onMove, onPick, follows }) {
    this.box = box;
    this.places = [];
    this.current = -1;
    this.onMove = onMove;
    box.setAttribute("role", "listbox");
    box.tabIndex = 0;
    const of = (event) => event.target.closest?.("[data-i]");
    box.addEventListener("pointerover", (event) => { const el = of(event); if (el && follows()) this.move(Number(el.dataset.i), false); });
    box.addEventListener("click", (event) => { const el = of(event); if (el) { this.current = Number(el.dataset.i); this.mark(); onPick(this.places[this.current], box); } });
    box.addEventListener("focus", () => { if (this.current < 0 && this.places.length) this.move(0); });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (step !== undefined) {
        event.preventDefault();
        this.move(Math.max(0, Math.min(this.places.length - 1, this.current + step)));
      } else if (event.key === "Enter" && this.current >= 0) {
        event.preventDefault();
        onPick(this.places[this.current], box);
      }
    });
  }

  // draw shows places as tree.line gives them. What is there already and has not changed is left alone, so that a long
  // text that grows by a token does not flicker.
  draw(places, measure) {
    const same = measure === this.measure ? this.places : [];
    this.measure = measure;
    let kept = 0;
    while (kept < same.length && kept < places.length && same[kept].token === places[kept].token && same[kept].node === places[kept].node) kept++;
    while (this.box.childNodes.length > kept) this.box.lastChild.remove();
    const added = document.createDocumentFragment();
    for (let i = kept; i < places.length; i++) added.append(this.element(places, i));
    this.box.append(added);
    this.places = places;
    if (this.current >= places.length) this.current = -1;
    this.mark();
  }

  element(places, i) {
    const { token, node } = places[i];
    const span = document.createElement("span");
    span.id = `${this.box.id}-${i}`;
    span.dataset.i = i;
    span.setAttribute("role", "option");
    span.textContent = visible(token);
    if (span.textContent.trim() === "") span.setAttribute("aria-label", `${span.textContent.length} spaces`);
    const level = shade(token, this.measure);
    span.className = level === null ? "token" : `token shade-${level}`;
    if (i > 0 && places[i - 1].node !== node) span.classList.add("begins");
    return span;
  }

  move(i, scroll = true) {
    if (i < 0 || i >= this.places.length) return;
    this.current = i;
    this.mark();
    if (scroll) this.box.childNodes[i].scrollIntoView({ block: "nearest" });
    this.onMove(this.places[i]);
  }

  mark() {
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

const measured = (value, digits, unit) => (value === null ? "not known" : `${value.toFixed(digits)}${unit}`);

// details says in words and a table what a token is and what it could have been. choose is called with an alternative;
// one that has the keyboard keeps it.
export function details(box, place, pieces, choose, held) {
  const { token } = place;
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  const heading = document.createElement("h3");
  heading.textContent = "Token ";
  const code = document.createElement("code");
  code.textContent = visible({ ...token, text: pieces(token.id) ?? token.text });
  heading.append(code);
  const facts = document.createElement("p");
  facts.className = "soft";
  const place_ = rank(token);
  facts.textContent = typeof token.logprob === "number"
    ? `id ${token.id} · probability ${percent(token.logprob)} · ${surprisal(token.logprob).toFixed(2)} bits · rank ${place_ ?? `below ${token.top?.length ?? 0}`} · entropy ${measured(entropy(token), 2, " bits or more")}`
    : `id ${token.id} · its probability is not known; Score finds it for a prompt`;
  box.replaceChildren(heading, facts);
  if (held) {
    const kept = document.createElement("p");
    kept.className = "soft";
    kept.textContent = "It stays here until Escape, or another click on it.";
    box.append(kept);
  }
  if (!token.top?.length) return;
  const list = document.createElement("ul");
  list.className = "alternatives";
  for (const one of token.top) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.id = one.id;
    const name = document.createElement("code");
    name.textContent = visible({ id: one.id, text: pieces(one.id) });
    const bar = document.createElement("meter");
    bar.max = 1;
    bar.value = probability(one.logprob);
    bar.setAttribute("aria-hidden", "true");
    const chance = document.createElement("span");
    chance.className = "n";
    chance.textContent = percent(one.logprob);
    const what = document.createElement("span");
    what.className = "unseen";
    what.textContent = one.id === token.id ? "What stands there: " : "Continue with ";
    button.append(what, name, bar, chance);
    button.disabled = one.id === token.id;
    button.addEventListener("click", () => choose(one));
    item.append(button);
    list.append(item);
  }
  box.append(list);
  if (focused !== undefined) box.querySelector(`[data-id="${focused}"]:enabled`)?.focus();
}
