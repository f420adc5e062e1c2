// What a token's log-probability says, in the ways people look at it.
const ln2 = Math.log(2);

export const probability = (logprob) => Math.exp(logprob);

// surprisal is in bits.
export const surprisal = (logprob) => 0 - logprob / ln2;

// rank is a token's place among the alternatives: 1 is the likeliest. Behind the last that is known it is null.
export function rank(token) {
  if (token.rank) return token.rank;
  const at = token.top?.findIndex((one) => one.id === token.id) ?? -1;
  if (at < 0) return null;
  return 1 + token.top.filter((one) => one.logprob > token.logprob).length;
}

// entropy is in bits, of the alternatives that are known; all others count as one, so the true one is not below it.
export function entropy(token) {
  if (!token.top?.length) return null;
  let left = 1;
  let sum = 0;
  for (const { logprob } of token.top) {
    const p = Math.exp(logprob);
    left -= p;
    if (p > 0) sum -= p * Math.log(p);
  }
  if (left > 1e-6) sum -= left * Math.log(left);
  return sum / ln2;
}

// score sums up tokens whose log-probability is known; bytes are those of their text.
export function score(tokens, bytes) {
  const known = tokens.filter((t) => typeof t.logprob === "number");
  const total = known.reduce((sum, t) => sum + t.logprob, 0);
  return {
    tokens: known.length, total, bits: surprisal(total), perToken: known.length ? total / known.length : null,
    perplexity: known.length ? Math.exp(-total / known.length) : null, bitsPerByte: bytes ? surprisal(total) / bytes : null,
  };
}

// shade is how strongly a token is coloured, from 0 to 8, by one of the measures; null where it is not known.
export function shade(token, measure) {
  if (typeof token.logprob !== "number") return null;
  const value = { surprisal: surprisal(token.logprob), rank: rank(token), entropy: entropy(token), probability: surprisal(token.logprob) }[measure];
  if (measure === "rank" && value === null) return 8;
  if (value === null || value === undefined) return null;
  if (measure === "rank") return Math.min(8, Math.round(2 * Math.log2(value)));
  return Math.min(8, Math.round(measure === "entropy" ? value * 1.5 : value * 0.8));
}

export const percent = (logprob) => {
  const p = 100 * Math.exp(logprob);
  return p >= 99.95 ? "100 %" : p >= 0.1 ? `${p.toPrecision(3)} %` : `${p.toExponential(1)} %`;
};
