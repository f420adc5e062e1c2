// Measures of a token's log-probability.
const ln2 = Math.log(2);

export const probability = (logprob) => Math.exp(logprob);

// surprisal is in bits.
export const surprisal = (logprob) => 0 - logprob / ln2;

// rank returns a token's rank by likelihood, from 1. It is null if the token is not among the known alternatives and has no
// rank from the API.
export function rank(token) {
  if (token.rank) return token.rank;
  const index = token.top?.findIndex((alternative) => alternative.id === token.id) ?? -1;
  if (index < 0) return null;
  return 1 + token.top.filter((alternative) => alternative.logprob > token.logprob).length;
}

// entropy returns a lower bound in bits: it counts all tokens that are not among the known alternatives as one.
export function entropy(token) {
  if (!token.top?.length) return null;
  let remaining = 1;
  let sum = 0;
  for (const { logprob } of token.top) {
    const p = Math.exp(logprob);
    remaining -= p;
    if (p > 0) sum -= p * Math.log(p);
  }
  if (remaining > 1e-6) sum -= remaining * Math.log(remaining);
  return sum / ln2;
}

// score sums up the tokens whose log-probability is known. bytes is the length of the text of all tokens.
export function score(tokens, bytes) {
  const known = tokens.filter((t) => typeof t.logprob === "number");
  const total = known.reduce((sum, t) => sum + t.logprob, 0);
  return {
    tokens: known.length, total, bits: surprisal(total), perToken: known.length ? total / known.length : null,
    perplexity: known.length ? Math.exp(-total / known.length) : null, bitsPerByte: bytes ? surprisal(total) / bytes : null,
  };
}

// shade returns how strongly a token is colored by a measure, from 0 to 8, or null if the measure is not known. A token that another
// model has judged is colored by its surprisal there.
export function shade(token, measure) {
  if (token.judged !== undefined) return Math.min(8, Math.round(surprisal(token.judged) * 0.8));
  if (typeof token.logprob !== "number") return null;
  const value = { surprisal: surprisal(token.logprob), rank: rank(token), entropy: entropy(token), probability: surprisal(token.logprob) }[measure];
  if (measure === "rank" && value === null) return 8;
  if (value === null || value === undefined) return null;
  if (measure === "rank") return Math.min(8, Math.round(2 * Math.log2(value)));
  return Math.min(8, Math.round(measure === "entropy" ? value * 1.5 : value * 0.8));
}

export const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  if (p >= 99.95) return "100 %";
  if (p < 1e-6) return "< 0.000001 %";
  return `${p.toLocaleString("en", { maximumSignificantDigits: p < 0.1 ? 2 : 3, minimumSignificantDigits: p < 0.1 ? 2 : 3, useGrouping: false })} %`;
};

// cumulative returns for each alternative the probability of it and those before it, at most 1.
export function cumulative(top) {
  let sum = 0;
  return top.map(({ logprob }) => { sum += Math.exp(logprob); return Math.min(1, sum); });
}
