// What another model finds of the texts that are side by side: how likely their tokens are to it.
import { element } from "./state.js";

export const judgement = { model: "", tokens: new WeakMap() }; // copies of tokens with judged, by tokens; model is empty if there is none

// judgedPlace returns a place whose token has the other model's probability, if there is one.
export function judgedPlace(place) {
  const token = judgement.model && judgement.tokens.get(place.token);
  return token ? { ...place, token } : place;
}

// share divides the log-probability of the other model's tokens among those at the same place, into a map from originals.
export function share({ first, second }, originals, found) {
  if (!first.length || !second.length || second.some(({ logprob }) => typeof logprob !== "number")) return;
  const judged = second.reduce((sum, token) => sum + token.logprob, 0) / first.length;
  for (const token of first) found.set(originals.get(token) ?? token, { ...token, judged });
}

// fact says in the details of a token what the other model finds.
export const fact = (token) => (token.judged === undefined ? "" : element("p", { className: "soft", textContent: `${judgement.model}: ${(-token.judged / Math.log(2)).toFixed(2)} bits` }));
