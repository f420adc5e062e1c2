// The workbench: what stands on the page, and what its parts do to the one document.
import * as api from "./api.js";
import * as tree from "./tree.js";
import * as copying from "./copying.js";
import { blame, fields, read } from "./parameters.js";
import { Saved } from "./saved.js";
import { score } from "./measures.js";
import { TokenView, details, visible } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const bench = $("bench");
let doc = tree.newTree();
let offered = { keys: [], models: [] };
let running = null; // the AbortController of what is under way
let unsaved = false;
const pieces = new Map(); // texts of tokens, by model and id
const views = new Map(); // TokenViews of the columns, by node

// --- what is shown

const model = () => $("model").value;
const piece = (id) => pieces.get(`${model()} ${id}`);

function show() {
  const columns = leaves();
  const box = $("columns");
  const wanted = columns.map((id) => `column-${id}`);
  for (const el of [...box.children]) if (!wanted.includes(el.id)) { views.delete(el.id); el.remove(); }
  columns.forEach((id, i) => {
    const el = $(`column-${id}`) ?? column(id);
    if (box.children[i] !== el) box.insertBefore(el, box.children[i] ?? null);
    views.get(el.id).draw(tree.line(doc, id).map(told), $("measure").value);
    const node = doc.nodes[id];
    el.querySelector("small").textContent = node.made ? `${node.made.model}${node.finish ? ` · ${node.finish}` : ""}` : "the prompt";
    el.classList.toggle("chosen", id === doc.selected);
  });
  box.hidden = columns.length === 0;
  drawTree();
}

// told gives a token the text that the model's tokenizer has told since.
function told(place) {
  if (place.token.text !== null) return place;
  const text = piece(place.token.id);
  if (text === undefined) return place;
  if (place.token.shown?.text !== text) place.token.shown = { ...place.token, text };
  return { ...place, token: place.token.shown };
}

// leaves are the nodes that stand side by side: the selected one, with those that were made together with it.
function leaves() {
  const node = doc.nodes[doc.selected];
  if (node.parent === null) return node.tokens.length ? ["root"] : [];
  const batch = node.made?.batch;
  return batch ? doc.order.filter((id) => doc.nodes[id].made?.batch === batch) : [doc.selected];
}

function column(id) {
  const el = document.createElement("section");
  el.id = `column-${id}`;
  el.className = "column";
  el.setAttribute("aria-label", id === "root" ? "The prompt's tokens" : "A continuation");
  const head = document.createElement("div");
  head.className = "line";
  const what = document.createElement("small");
  const on = document.createElement("button");
  on.type = "button";
  on.className = "quiet";
  on.textContent = "Go on from its end";
  on.hidden = id === "root";
  on.addEventListener("click", () => { change(tree.select(doc, id)); generate(id); });
  head.append(what, on);
  const text = document.createElement("div");
  text.id = `tokens-${id}`;
  text.className = "tokens mono";
  text.setAttribute("aria-label", "Tokens; the arrow keys move, Enter opens one");
  el.append(head, text);
  $("columns").append(el);
  views.set(el.id, new TokenView(text, { onMove: look, onPick: open }));
  return el;
}

function drawTree() {
  $("tree").replaceChildren(...tree.walk(doc).map(([node, depth]) => {
    const item = document.createElement("li");
    item.style.paddingInlineStart = `${Math.min(depth, 12) * 0.9}rem`;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    const text = node.parent === null ? $("prompt").value : node.tokens.map((t) => visible(told({ token: t }).token)).join("");
    button.textContent = (node.parent === null ? "Prompt: " : "") + (text.replaceAll(/\s+/g, " ").slice(0, 60) || "(empty)");
    if (node.id === doc.selected) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => { change(tree.select(doc, node.id)); });
    item.append(button);
    if (node.parent !== null) {
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove the branch ${button.textContent}`);
      remove.addEventListener("click", () => change(tree.remove(doc, node.id)));
      item.append(remove);
    }
    return item;
  }));
}

function change(next, keeps = false) {
  doc = next;
  unsaved ||= !keeps;
  show();
}

// --- tokens

let looked = null;
let asking = 0;

function look(place) {
  looked = place;
  details($("token"), place, piece, (one) => goOtherWay(place, one));
  clearTimeout(asking);
  asking = setTimeout(() => learn([place.token.id, ...(place.token.top ?? []).map((t) => t.id)]), 60);
}

function open(place) {
  look(place);
  $("token").querySelector("button:enabled")?.focus();
}

// learn asks the tokenizer for the texts of ids that nobody has told yet.
async function learn(ids) {
  const of = model();
  const missing = [...new Set(ids)].filter((id) => !pieces.has(`${of} ${id}`));
  if (!missing.length) return;
  try {
    const said = (await api.detokenize(of, missing)).pieces;
    missing.forEach((id, i) => pieces.set(`${of} ${id}`, said[i]));
  } catch {
    return; // the ids stay what is shown
  }
  if (looked) details($("token"), looked, piece, (one) => goOtherWay(looked, one));
  show();
}

function goOtherWay(place, one) {
  const token = { ...one, text: piece(one.id) ?? null, top: place.token.top };
  const [next, id] = tree.branch(doc, place.node, place.index, token);
  change(tree.select(next, id));
  generate(id);
}

// --- asking

function settings(form = $("settings")) { return read(form); }

// ready makes the prompt's text its tokens: whatever follows is asked for by ids, so that it goes on from exactly them.
async function ready(signal) {
  const text = $("prompt").value;
  const root = doc.nodes.root;
  if (root.tokens.length && root.text === text && root.model === model()) return;
  const { tokens, strings } = await api.tokenize(model(), text, signal);
  const said = (await api.detokenize(model(), tokens)).pieces;
  tokens.forEach((id, i) => pieces.set(`${model()} ${id}`, said[i] ?? strings?.[i]));
  // Branches of another prompt do not follow from this one.
  const fresh = tree.newTree(text);
  doc = tree.change(fresh, "root", { model: model(), tokens: tokens.map((id, i) => ({ id, text: said[i] ?? null, logprob: null, top: [] })) });
  unsaved = true;
}

// generate goes on from the end of a node, once for every choice, and at two models where they are compared.
async function generate(from) {
  await busy(async (signal) => {
    if (from === "root" || from === undefined) await ready(signal);
    const start = doc.nodes[from] ? from : "root";
    const batch = `b${doc.next}`;
    const jobs = [{ model: model(), settings: settings() }];
    if ($("compare").checked && start === "root") jobs.push({ model: $("second-model").value, settings: settings($("second-settings")), form: $("second-settings") });
    const alone = doc.nodes[start].parent !== null && doc.nodes[start].tokens.length === 1 && !doc.nodes[start].finish && (jobs[0].settings.n ?? 1) === 1;
    await Promise.all(jobs.map((job) => one(job, start, batch, alone, signal)));
  });
}

// one runs a job: its choices become nodes, or, where a single token was put in place, the rest of that node.
async function one(job, start, batch, alone, signal) {
  let prompt = tree.prefix(doc, start);
  if (job.model !== model()) prompt = $("prompt").value; // another tokenizer has other ids
  const ids = [];
  const made = { model: job.model, settings: job.settings, batch };
  for (let i = 0; i < (job.settings.n ?? 1); i++) {
    if (alone) {
      doc = tree.change(doc, start, { made });
      ids.push(start);
      break;
    }
    let id;
    [doc, id] = tree.add(doc, start, { made });
    ids.push(id);
  }
  doc = tree.select(doc, ids[0]);
  try {
    await api.stream($("key").value, { model: job.model, prompt, ...job.settings }, signal, (said) => {
      if (said.usage) $("progress").textContent = `${said.usage.prompt_tokens} + ${said.usage.completion_tokens} tokens`;
      for (const choice of said.choices ?? []) {
        const id = ids[choice.index] ?? ids[0];
        const tokens = api.tokensOf(choice);
        doc = tree.change(doc, id, { tokens: [...doc.nodes[id].tokens, ...tokens], finish: choice.finish_reason ?? doc.nodes[id].finish });
      }
      soon();
    });
    learn(ids.flatMap((id) => doc.nodes[id].tokens).filter((t) => t.text === null).map((t) => t.id));
  } catch (error) {
    for (const id of ids) if (id !== start && !doc.nodes[id].tokens.length) doc = tree.remove(doc, id);
    error.form = job.form ?? $("settings");
    throw error;
  } finally {
    unsaved = true;
    show();
  }
}

let frame = 0;
function soon() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; show(); });
}

async function scorePrompt() {
  await busy(async (signal) => {
    await ready(signal);
    const answer = await api.complete($("key").value, {
      model: model(), prompt: tree.prefix(doc, "root"), max_tokens: 1, temperature: 0, prompt_logprobs: settings().logprobs ?? 5,
    }, signal);
    const root = doc.nodes.root;
    change(tree.select(tree.change(doc, "root", { tokens: api.scored(root.tokens, answer) }), "root"));
    drawScores();
  });
}

function drawScores() {
  const s = score(doc.nodes.root.tokens, new TextEncoder().encode(doc.nodes.root.text).length);
  $("scores").hidden = s.tokens === 0;
  const rows = [
    ["Log-likelihood", `${s.total.toFixed(3)} nats`], ["in bits", `${s.bits.toFixed(2)}`], ["per token", `${s.perToken?.toFixed(3)} nats`],
    ["per byte", `${s.bitsPerByte?.toFixed(3)} bits`], ["Perplexity", `${s.perplexity?.toPrecision(4)}`], ["Tokens with a probability", `${s.tokens}`],
  ];
  $("scores").replaceChildren(...rows.map(([name, value]) => {
    const div = document.createElement("div");
    const dt = document.createElement("dt");
    const dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    dd.className = "figures";
    div.append(dt, dd);
    return div;
  }));
}

// --- what goes wrong, and what takes long

// busy does one thing at a time, and brings a cold model's boot to its end: it counts down and asks again by itself.
async function busy(what) {
  if (running) return;
  running = new AbortController();
  $("generate").disabled = $("score").disabled = true;
  $("stop").hidden = false;
  trouble(null);
  $("progress").textContent = "Asking…";
  try {
    for (;;) {
      try {
        await what(running.signal);
        break;
      } catch (error) {
        if (error.code !== "modal_cold_boot") throw error;
        await countdown(Math.max(error.retryAfter, 1), running.signal);
      }
    }
    if ($("progress").textContent === "Asking…") $("progress").textContent = "";
  } catch (error) {
    $("progress").textContent = error.name === "AbortError" ? "Stopped. What had come is kept, and is charged." : "";
    if (error.name !== "AbortError") trouble(error);
  } finally {
    running = null;
    $("generate").disabled = $("score").disabled = false;
    $("stop").hidden = true;
  }
}

async function countdown(seconds, signal) {
  for (let left = seconds; left > 0; left--) {
    $("progress").textContent = `${model()} is starting: about ${left} s more. It goes on by itself.`;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
  }
}

const advice = {
  budget_exceeded: (e) => `Used ${e.used?.toLocaleString()} of ${e.limit?.toLocaleString()} tokens, ${e.reserved?.toLocaleString() ?? 0} more are reserved by requests under way. The cap is that of the ${e.scope}, for the ${e.window}${e.resets_at ? `, and starts anew ${new Date(e.resets_at).toLocaleString()}` : ""}.`,
  invalid_api_key: () => "The key may have been paused or revoked. Choose another, or make one on the dashboard.",
  context_length_exceeded: () => "Shorten the prompt, or ask for fewer tokens.",
  overloaded: (e, error) => `Try again in ${error.retryAfter || "a few"} seconds.`,
};

function trouble(error) {
  const box = $("trouble");
  for (const form of [$("settings"), $("second-settings")]) blame(form, null);
  if (!error) { box.replaceChildren(); return; }
  const p = document.createElement("p");
  p.className = "notice bad";
  p.textContent = error.message;
  const more = advice[error.code]?.(error.details, error);
  if (more) p.append(" ", more);
  if (error.details?.request_id) {
    const small = document.createElement("small");
    small.textContent = ` ${error.code} · ${error.details.request_id}`;
    p.append(small);
  }
  box.replaceChildren(p);
  if (error.param) blame(error.form ?? $("settings"), error.param);
}

// --- the page's parts

async function offer() {
  offered = await api.overview();
  for (const id of ["model", "second-model"]) fill($(id), offered.models.map((m) => [m.id, `${m.id} (${m.status})`]));
  fill($("key"), offered.keys.filter((k) => k.state === "active").map((k) => [k.id, `${k.name} ${k.prefix}…`]));
  $("generate").disabled = $("score").disabled = !$("key").value || Boolean(running);
  if (!$("key").value) {
    const p = document.createElement("p");
    p.className = "notice warn";
    const link = document.createElement("a");
    link.href = "/keys/new";
    link.textContent = "make one on the dashboard";
    p.append("The workbench asks with one of your keys, so that its budget and queue count. You have none that is active: ", link, ".");
    $("trouble").replaceChildren(p);
  }
  state();
}

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === before)));
}

function state() {
  const m = offered.models.find((one) => one.id === model());
  if (!m) return;
  const boot = m.boot_seconds ? ` A start takes about ${m.boot_seconds} s and begins with your request.` : "";
  $("model-state").textContent = `${m.status}${m.max_model_len ? `, ${m.max_model_len.toLocaleString()} tokens of context` : ""}.${m.status === "warm" ? "" : boot}`;
  for (const form of [$("settings"), $("second-settings")]) if (m.max_logprobs) form.elements.logprobs.max = m.max_logprobs;
}

function copyAs(kind) {
  const node = doc.nodes[doc.selected];
  const prompt = node.parent === null ? $("prompt").value : tree.prefix(doc, doc.selected);
  const request = copying.body(model(), prompt, settings());
  const text = { curl: () => copying.asCurl(bench.dataset.base, request), python: () => copying.asPython(bench.dataset.base, request), json: () => copying.asJSON(request) }[kind]();
  $("copied").textContent = text;
  $("copied").hidden = false;
  navigator.clipboard?.writeText(text).catch(() => { /* it stands there to be copied by hand */ });
}

const saved = new Saved({
  list: $("saved"), search: $("saved-search"), name: $("name"), status: $("saved-status"),
  onOpen: openSaved,
  onErase: () => history.replaceState(null, "", "/workbench"),
});

async function openSaved(id) {
  if (unsaved && !confirm("What is here is not saved. Open the other one all the same?")) return;
  try {
    const one = await saved.load(id);
    const next = tree.unpack(one.document.tree);
    if ([...$("model").options].some((o) => o.value === one.model)) $("model").value = one.model;
    $("prompt").value = next.nodes.root.text;
    change(next, true);
    unsaved = false;
    state();
    drawScores();
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(id)}`);
  } catch (error) {
    trouble(error);
  }
}

async function save() {
  if (doc.nodes.root.text !== $("prompt").value) doc = tree.newTree($("prompt").value);
  try {
    await saved.save(model(), { tree: tree.pack(doc), settings: settings() });
    unsaved = false;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
  } catch (error) {
    saved.say(error.code === "conflict" ? "It was changed elsewhere since you opened it. Save it under another name, by New, or open it again." : error.message);
  }
}

$("settings").append(...fields("p"));
$("second-settings").append(...fields("q"));
for (const form of [$("settings"), $("second-settings")]) form.addEventListener("submit", (event) => event.preventDefault());
$("generate").addEventListener("click", () => generate("root"));
$("score").addEventListener("click", scorePrompt);
$("stop").addEventListener("click", () => running?.abort());
$("measure").addEventListener("change", show);
$("model").addEventListener("change", state);
$("prompt").addEventListener("input", () => { unsaved = true; });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate("root"); });
for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
$("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("new").addEventListener("click", () => {
  if (unsaved && !confirm("What is here is not saved. Begin anew all the same?")) return;
  saved.forget();
  $("prompt").value = "";
  change(tree.newTree(), true);
  unsaved = false;
  $("scores").hidden = true;
  history.replaceState(null, "", "/workbench");
});
addEventListener("beforeunload", (event) => { if (unsaved && doc.nodes.root.tokens.length) event.preventDefault(); });

try {
  await offer();
  setInterval(() => { if (!document.hidden) offer().catch(() => { /* the next will tell */ }); }, 10_000);
  await saved.refresh();
  if (bench.dataset.prompt) await openSaved(bench.dataset.prompt);
} catch (error) {
  trouble(error);
}
bench.dataset.ready = "";
