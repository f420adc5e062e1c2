// Texts side by side, colored by how likely another model finds them: the surprisal that it has at their tokens.
import * as tree from "./tree.js";
import { align } from "./align.js";
import { $, modelOf, onRender, render, state } from "./state.js";
import { isAllowed } from "./allowing.js";
import { isBlind } from "./blind.js";
import { judgement, share } from "./judged.js";
import { scoreTokens } from "./requests.js";
import { retryDuringBoot, runExclusively } from "./running.js";
import { tokensOfText, withText } from "./texts.js";

let shown = ""; // ids of the texts that have been judged

export function start() {
  onRender(renderChoice);
  $("judge").addEventListener("change", () => judgeAll($("judge").value));
}

function renderChoice() {
  const isShown = state.sideBySide.length > 1 && !isBlind();
  $("judge").closest("label").hidden = !isShown;
  if (judgement.model && (!isShown || state.sideBySide.join() !== shown)) forget();
  if (!isShown) return;
  const models = state.options.models.filter((m) => m.completions && isAllowed(m.id)).map(({ id }) => id);
  const key = models.join("\n");
  if ($("judge").dataset.shown === key) return;
  $("judge").dataset.shown = key;
  $("judge").replaceChildren(new Option("each text’s own model", ""), ...models.map((id) => new Option(id, id)));
  $("judge").value = judgement.model;
}

function forget() {
  judgement.model = "";
  $("judge").value = "";
}

async function judgeAll(requested) {
  const ids = [...state.sideBySide];
  forget();
  if (requested && await runExclusively(async (signal, say) => {
    const found = new WeakMap();
    await Promise.all(ids.map((id) => judgeText(id, requested, found, signal, say)));
    Object.assign(judgement, { model: requested, tokens: found });
    shown = ids.join();
    say(`Each text is colored by how likely ${requested} finds it.`);
  })) $("judge").value = judgement.model;
  render();
}

// judgeText finds the probabilities of a text's tokens. Of tokens that the judge does not have, each gets its share.
async function judgeText(id, requested, found, signal, say) {
  const resolve = withText(modelOf(id));
  const places = tree.withoutSpecialTokens(state.doc, tree.path(state.doc, id).map((place) => ({ ...resolve(place), original: place.token })));
  const text = tree.plainText(places.map(({ token }) => token));
  const tokens = await retryDuringBoot(requested, signal, () => tokensOfText(requested, text, false, signal), say);
  const scored = tree.withoutSpecial(await scoreTokens(requested, tokens, signal), text);
  const originals = new Map(places.map(({ token, original }) => [token, original]));
  for (const row of align(places.map(({ token }) => token), scored)) share(row, originals, found);
}
