// Copying what is selected: the text of tokens, without marks and without special tokens.
import { bench, element } from "./state.js";
import { textIn } from "./tokens.js";

export function start() {
  for (const type of ["copy", "cut"]) document.addEventListener(type, (event) => {
    if (event.target.matches?.("textarea, input:not([type=checkbox], [type=radio])")) return;
    const text = selectedText(getSelection());
    if (text === null) return;
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
    if (type === "cut") document.execCommand("delete");
  });
}

// selectedText returns the selected text, or null if no tokens are selected.
function selectedText(selection) {
  if (!selection.rangeCount || selection.isCollapsed) return null;
  const range = selection.getRangeAt(0);
  const boxes = [...bench.querySelectorAll("#prompt, [role=listbox]")].filter((box) => range.intersectsNode(box) && box.checkVisibility());
  if (!boxes.length) return null;
  if (boxes.length === 1 && boxes[0].contains(range.commonAncestorContainer)) return textIn(range);
  return textAround(boxes, range);
}

// textAround returns the text of a range that has more than tokens in it.
function textAround(boxes, range) {
  const copy = element("div", { className: "selected-copy" }, range.cloneContents());
  for (const box of boxes) {
    const part = document.createRange();
    part.selectNodeContents(box);
    if (box.contains(range.startContainer)) part.setStart(range.startContainer, range.startOffset);
    if (box.contains(range.endContainer)) part.setEnd(range.endContainer, range.endOffset);
    copy.querySelector(`#${CSS.escape(box.id)}`)?.replaceWith(element("div", { textContent: textIn(part) }));
  }
  for (const control of copy.querySelectorAll("button, input, select, textarea, [hidden]")) control.remove();
  document.body.append(copy);
  const text = copy.innerText;
  copy.remove();
  return text;
}
