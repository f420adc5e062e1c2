// Copying what is selected: the text of tokens, without the marks for line breaks and spaces, and without special tokens.
import * as tree from "./tree.js";
import { plainSlice, viewOf } from "./tokens.js";
import { bench, element, state } from "./state.js";

export function start() {
  document.addEventListener("copy", (event) => {
    if (event.target.matches?.("textarea, input:not([type=checkbox], [type=radio])")) return;
    const text = selectedText(getSelection());
    if (text === null) return;
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
  });
}

// selectedText returns the selected text, or null if no tokens are selected.
function selectedText(selection) {
  if (!selection.rangeCount || selection.isCollapsed) return null;
  const range = selection.getRangeAt(0);
  const boxes = [...bench.querySelectorAll("[role=listbox]")].filter((box) => viewOf(box) && range.intersectsNode(box) && box.checkVisibility());
  if (!boxes.length) return null;
  if (boxes.length === 1 && boxes[0].contains(range.commonAncestorContainer)) return textOfTokens(viewOf(boxes[0]), range);
  return textAround(boxes, range);
}

// textAround returns the text of a range that has more than tokens in it.
function textAround(boxes, range) {
  const copy = element("div", { className: "selected-copy" }, range.cloneContents());
  for (const box of boxes) copy.querySelector(`#${CSS.escape(box.id)}`)?.replaceWith(element("div", { textContent: textOfTokens(viewOf(box), range) }));
  for (const control of copy.querySelectorAll("button, input, select, textarea, [hidden]")) control.remove();
  document.body.append(copy);
  const text = copy.innerText;
  copy.remove();
  return text;
}

// textOfTokens returns the text of the tokens of a view that are in a range, which may begin and end within one.
function textOfTokens(view, range) {
  const kept = new Set(tree.withoutSpecialTokens(state.doc, view.places).map(({ token }) => token));
  const parts = tree.partsOf(view.places.map(({ token }) => token));
  const offset = (el, container, at, otherwise) => (el.contains(container) && container.nodeType === Node.TEXT_NODE ? at : otherwise);
  let text = "";
  view.elements.forEach((el, i) => {
    const { token } = view.places[view.begin + i];
    if (!range.intersectsNode(el) || !kept.has(token) || parts.has(view.begin + i)) return;
    const from = offset(el, range.startContainer, range.startOffset, 0);
    const to = offset(el, range.endContainer, range.endOffset, Infinity);
    text += plainSlice(token, from, to, view.spaces);
  });
  return text;
}
