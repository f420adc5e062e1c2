// The names of nodes of the document, as the map of branches and the exports show them.
import * as prose from "./prose.js";
import * as tree from "./tree.js";
import { modelOf, state } from "./state.js";
import { textOf } from "./tokens.js";
import { withText } from "./texts.js";

// labelOf returns the name of a node in the map.
export function labelOf(node, skipped = 0) {
  if (node.name) return node.name;
  if (node.role) return labelOfTurn(node);
  const isPrompt = node.parent === null;
  const resolve = withText(modelOf(node.id));
  const text = isPrompt ? node.text : textOf(node.tokens.slice(skipped, skipped + 60).map((token) => resolve({ token }).token));
  const label = isPrompt ? `${node.model ?? "Prompt"}: ` : "";
  return label + (skipped ? "…" : "") + (text.replaceAll(/\s+/g, " ").slice(0, 60) || "(empty)");
}

const roleLabels = { system: "Conversation", user: "User", assistant: "Assistant", tool: "Tool" };

function labelOfTurn({ role, text, calls }) {
  const names = (calls ?? []).map(({ name }) => name).join(", ");
  const shown = text.slice(0, 200).replaceAll(/\s+/g, " ").slice(0, 60) || (names && `calls ${names}`);
  return shown || role !== "system" ? `${roleLabels[role]}: ${shown || "(empty)"}` : roleLabels.system;
}

// beginsAt returns how many tokens at the beginning of branches are those of all their siblings, by their ids: a label begins at the
// difference.
export function beginsAt(doc) {
  const places = new Map();
  for (const id of doc.order) {
    const { parent, at, role } = doc.nodes[id];
    if (parent === null || role) continue;
    const key = `${parent}:${at}`;
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(id);
  }
  const skipped = new Map();
  for (const ids of places.values()) {
    const common = prose.common(ids.map((id) => doc.nodes[id].tokens));
    if (common) for (const id of ids) skipped.set(id, common);
  }
  return skipped;
}
