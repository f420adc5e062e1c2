// The texts of token ids, which the gateway knows for each model.
import * as api from "./api.js";
import * as tree from "./tree.js";
import { documentChanged, render, state } from "./state.js";

const known = new Map(); // by "model id"

// textsOf returns a function that returns the text of a token id of a model, or undefined.
export const textsOf = (model) => (id) => known.get(`${model} ${id}`);

export function remember(model, ids, pieces) {
  ids.forEach((id, i) => known.set(`${model} ${id}`, pieces[i]));
}

// withText returns a function that adds the text to a place whose token has none, if the text is known. It returns the same
// token every time, so that TokenView finds it unchanged.
const tokensWithText = new WeakMap();
export const withText = (model) => (place) => {
  if (place.token.text !== null) return place;
  const text = textsOf(model)(place.token.id);
  if (text === undefined) return place;
  if (!tokensWithText.has(place.token)) tokensWithText.set(place.token, { ...place.token, text });
  return { ...place, token: tokensWithText.get(place.token) };
};

// fetchTexts requests the texts of token ids that are not known, and reports whether there are new ones.
export async function fetchTexts(model, ids) {
  const missing = [...new Set(ids)].filter((id) => id !== null && !known.has(`${model} ${id}`));
  if (!missing.length) return false;
  try {
    const { pieces } = await api.detokenize(model, missing);
    remember(model, missing, pieces);
  } catch {
    return false; // the ids are shown instead
  }
  return true;
}

// resolveTexts requests the texts of the tokens of nodes whose stream has not sent them, such as parts of characters.
export async function resolveTexts(model, ids) {
  for (const id of ids) {
    const tokens = state.doc.nodes[id]?.tokens ?? [];
    if (tokens.every((token) => token.text !== null && !token.joins)) continue;
    try {
      const named = tokens.filter((token) => token.id !== null);
      const resolved = api.withTexts(named, await api.detokenize(model, named.map((token) => token.id)));
      const now = state.doc.nodes[id]?.tokens;
      if (now?.length !== tokens.length) continue; // it goes on growing, and is resolved at its end
      state.doc = tree.change(state.doc, id, { tokens: tokens.map((token) => (token.id === null ? token : resolved.shift())) });
    } catch {
      continue; // the ids are shown instead
    }
  }
  documentChanged();
  render();
}

// tokensOfText returns the tokens of a text for a model, with their texts. A fragment continues other tokens.
export async function tokensOfText(model, text, fragment, signal) {
  const { tokens: ids } = await api.tokenize(model, text, fragment, signal);
  const texts = await api.detokenize(model, ids);
  remember(model, ids, texts.pieces);
  return api.withTexts(ids.map((id) => ({ id, text: null, logprob: null, top: [] })), texts);
}
