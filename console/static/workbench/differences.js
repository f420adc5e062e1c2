// The differences of two branches, token by token.
import * as tree from "./tree.js";
import { difference } from "./align.js";
import { $, button, element, modelOf, state } from "./state.js";
import { textOf } from "./tokens.js";
import { withText } from "./texts.js";
import { labelOf } from "./branches.js";

// showDifferences shows the differences of two branches.
export function showDifferences(a, b) {
  const tokens = (id) => tree.path(state.doc, id).map(withText(modelOf(id))).map((place) => place.token);
  const parts = difference(tokens(a), tokens(b));
  const count = (kind) => parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.tokens.length, 0);
  const box = $("difference");
  const text = element("p", { className: "mono tokens", tabIndex: 0, "aria-label": "Text with the differences" });
  for (const { kind, tokens: part } of parts) {
    const shown = kind === "same" ? shorten(textOf(part)) : textOf(part);
    text.append(kind === "same" ? shown : element(kind === "first" ? "del" : "ins", { textContent: shown }));
  }
  box.replaceChildren(
    element("div", { className: "line" }, element("h2", { textContent: "Differences" }), button("Close", () => { box.hidden = true; }, { className: "quiet" })),
    element("p", { className: "soft" }, element("del", { textContent: labelOf(state.doc.nodes[a]) }), ` has ${count("first")} tokens that are not in `,
      element("ins", { textContent: labelOf(state.doc.nodes[b]) }), `, which has ${count("second")} others. ${count("same")} are the same.`), text);
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

// shorten leaves out the middle of a long text that both branches have.
const shorten = (text) => (text.length <= 600 ? text : `${text.slice(0, 200)} … ${(text.length - 500).toLocaleString("en")} characters that are the same … ${text.slice(-300)}`);
