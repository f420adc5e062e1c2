// Scores of any text: how likely its tokens are for a model, and a comparison of two texts or two models token by token.
import * as popover from "./popover.js";
import * as tree from "./tree.js";
import { align } from "./align.js";
import { $, element, modelOf, onRender, state } from "./state.js";
import { percent, score, shade, surprisal } from "./measures.js";
import { textOf, visibleText } from "./tokens.js";
import { tokensOfText, withText } from "./texts.js";
import { scoreContinuations, scorePrompt, scoreTokens } from "./requests.js";
import { retryDuringBoot, runExclusively } from "./running.js";

const most = 2000; // rows of the table

export function start() {
  onRender(renderScores);
  $("score").addEventListener("click", scorePrompt);
  $("score-texts").addEventListener("click", scoreTexts);
  $("rank-answers").addEventListener("click", rankAnswers);
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

// showResult shows the texts side by side: the first one by the surprisal of its tokens, the second by the difference.
function showResult(scored) {
  const names = scored.map(({ model: requested }, i) => (scored.length === 1 ? requested : `${i ? "Second" : "First"} text, ${requested}`));
  const all = scored.length === 1 ? scored[0].tokens.map((token) => ({ first: [token], second: null })) : align(scored[0].tokens, scored[1].tokens);
  const rows = all.slice(0, most);
  const boxes = scored.map((_, i) => element("div", { id: `scored-${i}`, className: "mono tokens", "aria-label": `Tokens, ${i ? "second" : "first"}: arrow keys to move, Enter to pin` }));
  const texts = scored.map(({ text, tokens }, i) => element("section", {},
    element("h3", { textContent: names[i] }), element("dl", { className: "gauges" }, ...list(figures(tokens, text) ?? [])), boxes[i]));
  const heads = ["Tokens", "Bits", ...(scored.length === 2 ? ["Second", "Bits", "Difference"] : [])];
  const body = rows.map((row) => {
    const cells = cellsOf(row.first);
    if (row.second) cells.push(...cellsOf(row.second), element("td", { className: "n", textContent: differenceOf(row) }));
    return element("tr", {}, ...cells);
  });
  const notes = [
    ...(scored.length === 2 ? [element("p", {}, "In the second text: ", colored([{ text: "likelier" }], "likelier shade-6"), " or ", colored([{ text: "unlikelier" }], "shade-6"), " than in the first.")] : []),
    ...(all.length > most ? [element("p", { className: "soft", textContent: `Shown are the first ${most.toLocaleString("en")} of ${all.length.toLocaleString("en")} rows.` })] : []),
  ];
  $("score-result").replaceChildren(element("div", { className: "columns" }, ...texts), ...notes,
    element("details", {}, element("summary", { textContent: "Table" }), tableOf("Surprisal of each token", heads, (i) => i === 1 || i > 2, body)));
  boxes.forEach((box, i) => {
    const places = (row) => (i ? row.second : row.first).map((token) => ({ token, node: box.id, model: scored[i].model, className: i ? shadeOfDifference(row) : undefined }));
    popover.viewOf(box).render(rows.flatMap(places).map((place, index) => ({ ...place, index })), { measure: "surprisal" });
  });
}

const colored = (tokens, className) => element("span", { className, textContent: textOf(tokens) });

function tableOf(label, heads, isNumber, rows) {
  const table = element("table", { className: "dense score-table" },
    element("thead", {}, element("tr", {}, ...heads.map((textContent, i) => element("th", { scope: "col", textContent, className: isNumber(i) ? "n" : "" })))),
    element("tbody", {}, ...rows));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": label }, table);
}

async function rankAnswers() {
  const answers = $("choice-answers").value.split("\n").filter((answer) => answer !== "");
  if (!answers.length) { $("choice-result").replaceChildren(element("p", { className: "soft", textContent: "Write the answers, one on each line." })); return; }
  await runExclusively(async (signal) => {
    showRanking(answers, await scoreContinuations($("choice-model").value, { context: $("choice-context").value, continuations: answers }, signal));
  });
}

// showRanking shows answers from the likeliest to the unlikeliest. Their shares are those among each other.
function showRanking(answers, { data, method, usage }) {
  const ranked = data.toSorted((a, b) => b.logprob - a.logprob);
  const all = Math.log(ranked.reduce((sum, { logprob }) => sum + Math.exp(logprob - ranked[0].logprob), 0)) + ranked[0].logprob;
  const perByte = ({ logprob, bytes }) => logprob / bytes;
  const best = Math.max(...ranked.map(perByte));
  const rows = ranked.map((answer) => element("tr", {},
    element("td", {}, element("code", { textContent: visibleText({ text: answers[answer.index] }, true) })),
    ...[percent(answer.logprob - all), answer.logprob.toFixed(3)].map((textContent) => element("td", { className: "n", textContent })),
    element("td", { className: "n" }, element(perByte(answer) === best ? "strong" : "span", { textContent: perByte(answer).toFixed(3) })),
    element("td", { className: "n", textContent: answer.tokens })));
  const heads = ["Answer", "Share", "Log-likelihood, nats", "per byte", "Tokens"];
  const cost = `${usage.total_tokens.toLocaleString("en")} tokens charged, by ${method === "next_token" ? "the next token after the context" : "scored prompts"}.`;
  $("choice-result").replaceChildren(tableOf("Answers by likelihood", heads, (i) => i > 0, rows), element("p", { className: "soft", textContent: cost }));
}

// bitsOf returns the surprisal of tokens together, or null if it is not known.
const bitsOf = (tokens) => (tokens.length && tokens.every((token) => typeof token.logprob === "number") ? tokens.reduce((sum, token) => sum + surprisal(token.logprob), 0) : null);

// shadeOf returns the class of tokens by their mean surprisal.
function shadeOf(tokens) {
  const bits = bitsOf(tokens);
  return bits === null ? "" : `shade-${shade({ logprob: -bits * Math.log(2) / tokens.length }, "surprisal")}`;
}

// shadeOfDifference returns the class of the second tokens of a row by how much likelier or unlikelier they are than the first.
function shadeOfDifference({ first, second }) {
  const [a, b] = [bitsOf(first), bitsOf(second)];
  if (a === null || b === null) return "";
  return `${b < a ? "likelier " : ""}shade-${Math.min(8, Math.round(2 * Math.abs(b - a)))}`;
}

function cellsOf(tokens) {
  const bits = bitsOf(tokens);
  return [
    element("td", {}, element("code", { className: shadeOf(tokens), textContent: textOf(tokens) })),
    element("td", { className: "n", textContent: bits === null ? "" : bits.toFixed(2) }),
  ];
}

function differenceOf({ first, second }) {
  const [a, b] = [bitsOf(first), bitsOf(second)];
  if (a === null || b === null) return "";
  return `${b > a ? "+" : ""}${(b - a).toFixed(2)}`;
}
