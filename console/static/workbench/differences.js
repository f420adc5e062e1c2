// The differences of two branches, token by token.
import * as tree from "./tree.js";
import { difference } from "./align.js";
import { $, button, element, isChat, isRunning, modelOf, onRender, state } from "./state.js";
import { textOf } from "./tokens.js";
import { withText } from "./texts.js";
import { labelOf } from "./labels.js";

let shown = null; // {ids, nodes} of the two branches whose differences are shown, and what is shown of them

onRender(renderDifferences);

// showDifferences shows the differences of two branches, and of what becomes of them.
export function showDifferences(...ids) {
  shown = { ids };
  renderDifferences();
  $("difference").scrollIntoView({ block: "nearest" });
}

// hide is also called when another document is shown, whose nodes may have the same ids.
export function hide() {
  shown = null;
  $("difference").hidden = true;
}

// renderDifferences shows the differences again if one of the branches has changed.
function renderDifferences() {
  if (!shown || isRunning()) return;
  const { ids } = shown;
  if (isChat() || !ids.every((id) => state.doc.nodes[id])) { hide(); return; }
  const nodes = ids.flatMap((id) => tree.path(state.doc, id).map(({ token }) => token)).concat(ids.map((id) => labelOf(state.doc.nodes[id])));
  if (shown.nodes?.length === nodes.length && nodes.every((node, i) => node === shown.nodes[i])) return;
  shown.nodes = nodes;
  draw(...ids);
}

function draw(a, b) {
  const tokens = (id) => tree.withoutSpecialTokens(state.doc, tree.path(state.doc, id).map(withText(modelOf(id)))).map((place) => place.token);
  const parts = difference(tokens(a), tokens(b));
  const count = (kind) => parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.tokens.length, 0);
  const box = $("difference");
  const text = element("p", { className: "mono tokens", tabIndex: 0, "aria-label": "Text with the differences" });
  for (const { kind, tokens: part } of parts) {
    const content = withMarks(kind === "same" ? shorten(textOf(part)) : textOf(part));
    text.append(...(kind === "same" ? content : [element(kind === "first" ? "del" : "ins", {}, ...content)]));
  }
  box.replaceChildren(
    element("div", { className: "line" }, element("h2", { textContent: "Differences" }), button("Close", hide, { className: "quiet" })),
    element("p", { className: "soft" }, `${count("first")} tokens only in `, element("del", { textContent: labelOf(state.doc.nodes[a]) }), `, ${count("second")} only in `,
      element("ins", { textContent: labelOf(state.doc.nodes[b]) }), `, ${count("same")} shared.`), text);
  box.hidden = false;
}

// withMarks returns a text whose marks for line breaks and tabs are not copied.
const withMarks = (text) => text.split(/(↵(?=\n)|⇥(?=\t))/).map((part, i) => (i % 2 ? element("span", { className: "mark", textContent: part }) : part));

// shorten leaves out the middle of a long text that both branches have.
const shorten = (text) => (text.length <= 600 ? text : `${text.slice(0, 200)} … ${(text.length - 500).toLocaleString("en")} characters that are the same … ${text.slice(-300)}`);
