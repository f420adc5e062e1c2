// Scores of any text: how likely its tokens are for a model, and a comparison of two texts or two models token by token.
import * as tree from "./tree.js";
import { align } from "./align.js";
import { $, element, modelOf, onRender, state } from "./state.js";
import { score, shade, surprisal } from "./measures.js";
import { textOf } from "./tokens.js";
import { tokensOfText, withText } from "./texts.js";
import { retryDuringBoot, runExclusively, scorePrompt, scoreTokens } from "./requests.js";

const most = 2000; // rows of the table

export function start() {
  onRender(renderScores);
  $("score").addEventListener("click", scorePrompt);
  $("score-texts").addEventListener("click", scoreTexts);
  for (const side of ["first", "second"]) {
    $(`${side}-use`).addEventListener("click", () => {
      const id = state.doc.selected;
      $(`${side}-text`).value = tree.textOf(state.doc, id, withText(modelOf(id))) || $("prompt").value;
    });
  }
}

// figures returns the sums of scored tokens as a list of names and values.
function figures(tokens, text) {
  const s = score(tokens, new TextEncoder().encode(text).length);
  if (!s.tokens) return null;
  return [
    ["Log-likelihood", `${s.total.toFixed(3)} nats`], ["in bits", `${s.bits.toFixed(2)}`], ["per token", `${s.perToken.toFixed(3)} nats`],
    ["per byte", `${s.bitsPerByte.toFixed(3)} bits`], ["Perplexity", `${s.perplexity.toPrecision(4)}`], ["Tokens with a probability", `${s.tokens}`],
  ];
}

const list = (rows) => rows.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { className: "figures", textContent: value })));

// renderScores shows the score of the prompt of what is selected, if it is another one.
let scored = null;
function renderScores() {
  const { tokens, text } = tree.rootOf(state.doc, state.doc.selected);
  if (tokens === scored) return;
  scored = tokens;
  const rows = figures(tokens, text);
  $("scores").hidden = !rows;
  $("scores").replaceChildren(...(rows ? list(rows) : []));
}

async function scoreTexts() {
  const texts = ["first", "second"].map((side) => ({ text: $(`${side}-text`).value, model: $(`${side}-text-model`).value }));
  if (!texts[1].text && texts[1].model !== texts[0].model) texts[1].text = texts[0].text;
  const wanted = texts.filter(({ text }) => text);
  if (!wanted.length) { $("score-result").replaceChildren(element("p", { className: "soft", textContent: "Write a text to score, or take that of the selected branch." })); return; }
  await runExclusively(async (signal) => {
    const results = await Promise.all(wanted.map(async ({ text, model: requested }) => {
      const tokens = await retryDuringBoot(requested, signal, () => tokensOfText(requested, text, false, signal));
      return { text, model: requested, tokens: tree.withoutSpecial(await scoreTokens(requested, tokens, signal), text) };
    }));
    showResult(results);
  });
}

function showResult(scored) {
  const names = scored.map(({ model: requested }, i) => (scored.length === 1 ? requested : `${i ? "Second" : "First"} text, ${requested}`));
  const sums = scored.flatMap(({ text, tokens }, i) => [element("h3", { textContent: names[i] }), element("dl", { className: "gauges" }, ...list(figures(tokens, text) ?? []))]);
  const rows = scored.length === 1 ? scored[0].tokens.map((token) => ({ first: [token], second: null })) : align(scored[0].tokens, scored[1].tokens);
  const heads = ["Tokens", "Bits", ...(scored.length === 2 ? ["Second", "Bits", "Difference"] : [])];
  const body = rows.slice(0, most).map((row) => {
    const cells = cellsOf(row.first);
    if (row.second) cells.push(...cellsOf(row.second), element("td", { className: "n", textContent: differenceOf(row) }));
    return element("tr", {}, ...cells);
  });
  const table = element("table", { className: "dense score-table" },
    element("thead", {}, element("tr", {}, ...heads.map((textContent, i) => element("th", { scope: "col", textContent, className: i === 1 || i > 2 ? "n" : "" })))),
    element("tbody", {}, ...body));
  const note = rows.length > most ? [element("p", { className: "soft", textContent: `The table has the first ${most.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows.` })] : [];
  $("score-result").replaceChildren(...sums, element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Surprisal of each token" }, table), ...note);
}

// bitsOf returns the surprisal of tokens together, or null if it is not known.
const bitsOf = (tokens) => (tokens.length && tokens.every((token) => typeof token.logprob === "number") ? tokens.reduce((sum, token) => sum + surprisal(token.logprob), 0) : null);

function cellsOf(tokens) {
  const bits = bitsOf(tokens);
  const level = bits === null ? null : shade({ logprob: -bits * Math.log(2) / tokens.length }, "surprisal");
  return [
    element("td", {}, element("code", { className: level === null ? "" : `shade-${level}`, textContent: textOf(tokens) })),
    element("td", { className: "n", textContent: bits === null ? "" : bits.toFixed(2) }),
  ];
}

function differenceOf({ first, second }) {
  const [a, b] = [bitsOf(first), bitsOf(second)];
  if (a === null || b === null) return "";
  return `${b > a ? "+" : ""}${(b - a).toFixed(2)}`;
}
