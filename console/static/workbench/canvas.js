// The canvas: the text of the selected branch, the prompt with what follows it, which can be edited anywhere.
import * as popover from "./popover.js";
import * as prose from "./prose.js";
import { $, bench, element, isChat, modelOf, onRender, setDocument, state, undo } from "./state.js";
import { TokenView, textIn } from "./tokens.js";
import { placeStrips } from "./siblings.js";
import { withText } from "./texts.js";

const box = $("prompt");
let view;
let composing = false; // an input method shows text that is not in the document yet
let sticks = false; // the cursor follows the end of what is generated
let left = null; // where the cursor was when the text lost the focus
let typed = ""; // while the page was loaded
let actions; // {generate}

export function start(callbacks) {
  actions = callbacks;
  typed = shown();
  view = new TokenView(box, { onMove: popover.inspect, onSelect: pin, onLeave: leave, followsPointer: () => !popover.isPinned(), isEditable: true });
  Object.defineProperty(box, "value", { get: text }); // as of a text field
  onRender(render);
  box.addEventListener("beforeinput", change);
  box.addEventListener("input", () => { if (!composing) read(); });
  box.addEventListener("compositionstart", () => { composing = true; });
  box.addEventListener("compositionend", () => { composing = false; read(); });
  box.addEventListener("keydown", useKey);
  let pointed = false;
  box.addEventListener("pointerdown", () => { pointed = true; });
  box.addEventListener("blur", () => {
    pointed = false;
    left = selected()?.[1] ?? left;
  });
  box.addEventListener("focus", () => {
    const [from, to] = selected() ?? [];
    if (!pointed && from === to) setCaret(Math.min(left ?? Infinity, text().length));
    pointed = false;
  });
  for (const type of ["pointerdown", "keydown"]) box.addEventListener(type, (event) => { if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) sticks = false; });
  box.addEventListener("dragstart", (event) => event.preventDefault());
  bench.addEventListener("run-ended", () => { if (sticks && document.activeElement === box) setCaret(text().length); });
}

// takeTyped makes what was typed while the page was loaded the text of the new prompt.
export function takeTyped() {
  if (!typed) return;
  view.clear();
  append(typed);
}

export const append = (more) => put(text() + more, text().length + more.length);

// allow makes the text editable, once the document is there. That of a new prompt is so from the beginning.
export function allow() {
  try { box.contentEditable = "plaintext-only"; } catch { box.contentEditable = "true"; } // change makes all changes in both
  box.setAttribute("aria-readonly", "false");
}

// resolver returns a function that adds the text to a place of the selected branch whose token has none.
const resolver = () => withText(modelOf(state.doc.selected));

// text returns the text of the selected branch.
export const text = () => (isChat() ? "" : prose.textOf(state.doc, state.doc.selected, resolver()));

function render() {
  if (isChat() || composing) return;
  const { doc } = state;
  const places = prose.placesOf(doc, doc.selected, resolver());
  const last = places.at(-1)?.token;
  const end = box.querySelector("br.end")?.parentElement; // where the cursor is on an empty line
  const needsEnd = !last || Boolean(last.text?.endsWith("\n"));
  if (!needsEnd || places.length !== view.places.length || last !== view.places.at(-1)?.token) end?.remove();
  view.render(places, { measure: $("measure").value, spaces: $("show-spaces").checked });
  if (needsEnd && !end?.isConnected) box.append(element("div", {}, element("br", { className: "end" })));
  box.toggleAttribute("data-empty", !last);
  placeStrips(view);
  $("view").hidden = state.sideBySide.length < 2 && !places.some(({ token }) => token.logprob !== null);
}

// offsetOf returns how much text precedes a point of the canvas.
function offsetOf(node, offset) {
  const range = document.createRange();
  range.setStart(box, 0);
  range.setEnd(node, offset);
  return textIn(range).length;
}

// selected returns the selected part of the text as [from, to], or null.
function selected(range = getSelection().rangeCount ? getSelection().getRangeAt(0) : null) {
  if (!range || !box.contains(range.startContainer) || !box.contains(range.endContainer)) return null;
  const from = offsetOf(range.startContainer, range.startOffset);
  return [from, range.startContainer === range.endContainer && range.startOffset === range.endOffset ? from : offsetOf(range.endContainer, range.endOffset)];
}

// cursor returns where the selected branch is to be continued: at the cursor, or null for its end.
export function cursor() {
  const [from, to] = (document.activeElement === box && selected()) || [null, null];
  return from !== to || !from || from >= text().length ? null : from;
}

function setCaret(offset) {
  const texts = document.createTreeWalker(box, NodeFilter.SHOW_ALL, (node) => (node.nodeType === Node.TEXT_NODE ? NodeFilter.FILTER_ACCEPT
    : node.contentEditable === "false" ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP));
  let last = null;
  for (let node = texts.nextNode(), left = offset; node; left -= node.length, node = texts.nextNode()) {
    last = node;
    if (left < node.length || (left === node.length && !node.data.endsWith("\n"))) {
      getSelection().collapse(node, left);
      node.parentElement.scrollIntoView({ block: "nearest" });
      return;
    }
  }
  const end = box.querySelector("br.end")?.parentElement;
  if (end) getSelection().collapse(end, 0);
  else if (last) getSelection().collapse(last, last.length);
  end?.scrollIntoView({ block: "nearest" });
}

// put changes the text, and sets the cursor.
function put(next, caret, joins = false) {
  popover.close();
  view.unmark();
  setDocument(prose.write(state.doc, state.doc.selected, next, resolver()), { joins });
  setCaret(caret);
}

// change makes the changes of the text that keys, the clipboard and menus ask for.
function change(event) {
  const { inputType } = event;
  if (inputType === "insertCompositionText" || event.isComposing) return; // see read
  event.preventDefault();
  if (inputType.startsWith("history")) { goBack(inputType === "historyUndo"); return; }
  const target = ["insertFromDrop", "insertReplacementText"].includes(inputType) ? event.getTargetRanges()[0] : undefined;
  let [from, to] = selected(target) ?? [null];
  if (from === null || inputType === "deleteByDrag") return;
  const now = text();
  const breaks = inputType === "insertParagraph" || inputType === "insertLineBreak";
  const inserted = !inputType.startsWith("insert") ? "" : breaks ? "\n" : (event.data ?? event.dataTransfer?.getData("text/plain") ?? "").replaceAll(/\r\n?/g, "\n");
  if (inputType.startsWith("delete") && from === to) [from, to] = prose.reach(now, from, inputType);
  put(now.slice(0, from) + inserted + now.slice(to), from + inserted.length, inserted.length === 1 && /\S/.test(inserted));
}

// shown returns the text as the page has it.
function shown() {
  const all = document.createRange();
  all.selectNodeContents(box);
  return textIn(all);
}

// read takes over what the browser has changed itself, as an input method does.
function read() {
  const [next, caret] = [shown(), selected()?.[1]];
  view.clear();
  put(next, caret ?? next.length);
}

// goBack undoes or redoes the last change.
function goBack(back) {
  undo(back);
  setCaret(text().length);
}

function useKey(event) {
  if (event.target !== box || event.isComposing) return;
  const command = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (event.key === "Enter" && command) {
    event.preventDefault();
    const at = cursor();
    sticks = true;
    actions.generate(at);
  } else if (command && (key === "z" || key === "y")) {
    event.preventDefault();
    goBack(key === "z" && !event.shiftKey);
  } else if (event.key === "Enter" && event.altKey) {
    event.preventDefault();
    const el = elementAtCaret();
    if (!el) return;
    view.move(Number(el.dataset.i), false);
    popover.togglePin(view);
  }
}

// elementAtCaret returns the element of the token at the cursor, or before it.
function elementAtCaret() {
  const at = selected()?.[1];
  const [, end] = view.elements.reduce(([length, found], el) => (length <= at && el.textContent ? [length + el.textContent.length, el] : [length, found]), [0, null]);
  return end;
}

function leave() {
  popover.leave();
  if (!popover.isPinned()) view.unmark();
}

// pin keeps the alternatives of a token that was clicked open, while the cursor stays in the text. On a touch screen the first tap
// shows them without its keyboard, and the second one sets the cursor.
const isTouch = matchMedia("(pointer: coarse)");
function pin() {
  if (!getSelection().isCollapsed || !view.place.token.top?.length) popover.close();
  else (isTouch.matches ? popover.togglePin : popover.pin)(view);
}

