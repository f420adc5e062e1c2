// Two lists of tokens side by side: their differences, and which tokens of one are at the place of which of the other.
import { diffArrays } from "../vendor/jsdiff/array.js";
import { plainText } from "./tree.js";

const name = (token) => token.text ?? `⟨${token.id}⟩`;

// difference returns the parts of two lists of tokens: {kind: "same" | "first" | "second", tokens}. Tokens are the same if
// their texts are, so that tokens of two models can be compared.
export function difference(first, second) {
  const changes = diffArrays(first, second, { comparator: (a, b) => name(a) === name(b), timeout: 1000 })
    ?? [{ removed: true, value: first }, { added: true, value: second }];
  return changes.map((change) => ({ kind: change.added ? "second" : change.removed ? "first" : "same", tokens: change.value }));
}

// align returns rows of two lists of tokens: {first, second}, each a list of the tokens that are at the same place. Of the same
// text, a row ends where a token of both ends. Of different texts, a row is a token of both, or what only one has.
export function align(first, second) {
  return plainText(first) === plainText(second) ? alignSame(first, second) : alignDifferent(first, second);
}

function alignSame(first, second) {
  const rows = [];
  let [i, j] = [0, 0];
  while (i < first.length || j < second.length) {
    const row = { first: [], second: [] };
    let [a, b] = [0, 0]; // characters
    do {
      if (i < first.length && (a <= b || j >= second.length)) { row.first.push(first[i]); a += shownLength(first, i++); }
      else { row.second.push(second[j]); b += shownLength(second, j++); }
    } while ((a !== b || !row.first.length || !row.second.length) && (i < first.length || j < second.length));
    rows.push(row);
  }
  return rows;
}

// shownLength returns how many characters a token adds to the text. A part of a character adds none before its last one.
function shownLength(tokens, i) {
  for (let n = 1; n < 4; n++) if ((tokens[i + n]?.joins ?? 0) >= n) return 0;
  return (tokens[i].text ?? "").length;
}

function alignDifferent(first, second) {
  const rows = [];
  let [i, j] = [0, 0]; // the same tokens have other probabilities in the other list
  for (const { kind, tokens } of difference(first, second)) {
    if (kind === "same") {
      for (let n = 0; n < tokens.length; n++) rows.push({ first: [first[i++]], second: [second[j++]] });
      continue;
    }
    const last = rows.at(-1);
    if (kind === "first") i += tokens.length;
    else j += tokens.length;
    if (kind === "second" && last?.only) { last.second = tokens; last.only = false; } else rows.push({ first: kind === "first" ? tokens : [], second: kind === "second" ? tokens : [], only: kind === "first" });
  }
  return rows.map(({ first, second }) => ({ first, second }));
}
