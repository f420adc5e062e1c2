// The workbench: what stands on the page, and what its parts do to the one document.
import * as api from "./api.js";
import * as tree from "./tree.js";
import * as copying from "./copying.js";
import { blame, fields, read, write } from "./parameters.js";
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
const modelOf = (id) => tree.rootOf(doc, id).model;
const piecesOf = (of) => (id) => pieces.get(`${of} ${id}`);

function show() {
  const columns = leaves();
  const box = $("columns");
  const wanted = columns.map((id) => `column-${id}`);
  for (const el of [...box.children]) if (!wanted.includes(el.id)) { views.delete(el.id); el.remove(); }
  columns.forEach((id, i) => {
    const el = $(`column-${id}`) ?? column(id);
    if (box.children[i] !== el) box.insertBefore(el, box.children[i] ?? null);
    views.get(el.id).draw(tree.line(doc, id).map(told(modelOf(id))), $("measure").value);
    const node = doc.nodes[id];
    const what = node.parent === null ? "the prompt" : node.finish;
    el.querySelector("small").textContent = [modelOf(id), what].filter(Boolean).join(" · ");
    el.classList.toggle("chosen", id === doc.selected);
  });
  box.hidden = columns.length === 0;
  drawTree();
  drawScores();
}

// told gives a token the text that its model's tokenizer has told since.
const shown = new WeakMap();
const told = (of) => (place) => {
  if (place.token.text !== null) return place;
  const text = piecesOf(of)(place.token.id);
  if (text === undefined) return place;
  if (!shown.has(place.token)) shown.set(place.token, { ...place.token, text });
  return { ...place, token: shown.get(place.token) };
};

// leaves are the nodes that stand side by side: the selected one, with those that were made together with it.
function leaves() {
  const node = doc.nodes[doc.selected];
  if (node.parent === null) return node.tokens.length ? [node.id] : [];
  const batch = node.made?.batch;
  return batch ? doc.order.filter((id) => doc.nodes[id].made?.batch === batch) : [doc.selected];
}

function column(id) {
  const el = document.createElement("section");
  el.id = `column-${id}`;
  el.className = "column";
  const prompt = doc.nodes[id].parent === null;
  el.setAttribute("aria-label", prompt ? "The prompt's tokens" : "A continuation");
  const head = document.createElement("div");
  head.className = "line";
  const what = document.createElement("small");
  const on = document.createElement("button");
  on.type = "button";
  on.className = "quiet";
  on.textContent = "Go on from its end";
  on.hidden = prompt;
  on.addEventListener("click", () => { if (!running) { select(id); goOn(id); } });
  head.append(what, on);
  const text = document.createElement("div");
  text.id = `tokens-${id}`;
  text.className = "tokens mono";
  text.setAttribute("aria-label", "Tokens; the arrow keys move, Enter opens one");
  el.append(head, text);
  $("columns").append(el);
  views.set(el.id, new TokenView(text, { onMove: look, onPick: open, follows: () => !held() }));
  return el;
}

function drawTree() {
  const several = tree.roots(doc).length > 1;
  $("tree").replaceChildren(...tree.walk(doc).map(([node, depth]) => {
    const item = document.createElement("li");
    item.style.paddingInlineStart = `${Math.min(depth, 12) * 0.9}rem`;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    const prompt = node.parent === null;
    const text = prompt ? (several ? node.text : $("prompt").value) : node.tokens.slice(0, 60).map((t) => visible(told(modelOf(node.id))({ token: t }).token)).join("");
    const label = prompt ? `Prompt${several && node.model ? ` at ${node.model}` : ""}: ` : "";
    button.textContent = label + (text.replaceAll(/\s+/g, " ").slice(0, 60) || "(empty)");
    if (node.id === doc.selected) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => select(node.id));
    item.append(button);
    if (!prompt || several) {
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

// keepPrompt gives what is written as the prompt a place in the document, so that going elsewhere does not lose it.
function keepPrompt() {
  const text = $("prompt").value;
  if (!text || tree.roots(doc).some((id) => doc.nodes[id].text === text)) return;
  [doc] = tree.plant(doc, text, null);
}

// select goes to a node, with its prompt and its model.
function select(id) {
  keepPrompt();
  adopt(tree.rootOf(doc, id));
  change(tree.select(doc, id));
}

function adopt(root) {
  $("prompt").value = root.text;
  if ([...$("model").options].some((o) => o.value === root.model)) $("model").value = root.model;
  state();
}

// --- tokens

let looked = null; // the token that is shown beside
let opened = null; // the box that it was opened in, if it was
let asking = 0;

// held tells whether the pointer leaves it alone, on its way to the alternatives: as long as the box is on the page.
const held = () => Boolean(opened?.isConnected);

function look(place, box = null) {
  looked = place;
  opened = box;
  tell(place);
  clearTimeout(asking);
  asking = setTimeout(() => learn(modelOf(place.node), [place.token.id, ...(place.token.top ?? []).map((t) => t.id)]), 60);
}

function tell(place) {
  if (doc.nodes[place.node]) details($("token"), place, piecesOf(modelOf(place.node)), (one) => goOtherWay(place, one), held());
}

// open holds a token, or lets go of the one that is held already.
function open(place, box) {
  const again = held() && looked.node === place.node && looked.index === place.index;
  look(place, again ? null : box);
  if (held()) $("token").querySelector("button:enabled")?.focus();
}

function letGo() {
  if (!held()) return;
  if ($("token").contains(document.activeElement)) opened.focus();
  look(looked);
}

// learn asks a model's tokenizer for the texts of ids that nobody has told yet.
async function learn(of, ids) {
  const missing = [...new Set(ids)].filter((id) => !pieces.has(`${of} ${id}`));
  if (!missing.length) return;
  try {
    const said = (await api.detokenize(of, missing)).pieces;
    missing.forEach((id, i) => pieces.set(`${of} ${id}`, said[i]));
  } catch {
    return; // the ids stay what is shown
  }
  if (looked) tell(looked);
  show();
}

function goOtherWay(place, one) {
  if (running) return;
  opened = null;
  const token = { ...one, text: piecesOf(modelOf(place.node))(one.id) ?? null, top: place.token.top };
  const [next, id] = tree.branch(doc, place.node, place.index, token);
  change(next);
  select(id);
  goOn(id);
}

// --- asking

function settings(form = $("settings")) { return read(form); }

// root gives the prompt's node at a model, with its tokens: whatever follows is asked for by ids, so that it goes on from
// exactly them.
async function root(of, signal) {
  let id;
  [doc, id] = tree.plant(doc, $("prompt").value, of);
  if (doc.nodes[id].tokens.length) return id;
  const text = doc.nodes[id].text;
  const { tokens } = await patiently(of, signal, () => api.tokenize(of, text, signal));
  const said = (await api.detokenize(of, tokens)).pieces;
  tokens.forEach((token, i) => pieces.set(`${of} ${token}`, said[i]));
  doc = tree.change(doc, id, { tokens: tokens.map((token, i) => ({ id: token, text: said[i], logprob: null, top: [] })) });
  unsaved = true;
  return id;
}

// generate goes on from the prompt, once for every choice, and at two models where they are compared.
async function generate() {
  const batch = `b${Date.now()}`;
  const jobs = [{ model: model(), settings: settings(), form: $("settings"), batch }];
  if ($("compare").checked) jobs.push({ model: $("second-model").value, settings: settings($("second-settings")), form: $("second-settings"), batch });
  await busy((signal) => all(jobs.map(async (job) => run(job, await root(job.model, signal), signal))));
}

// goOn goes on from the end of a node, at the model whose ids it has.
async function goOn(from) {
  const job = { model: modelOf(from), settings: settings(), form: $("settings"), batch: `b${Date.now()}` };
  await busy((signal) => run(job, from, signal));
}

// all waits for every one, and throws what the first to fail has thrown.
async function all(promises) {
  const failed = (await Promise.allSettled(promises)).find((one) => one.status === "rejected");
  if (failed) throw failed.reason;
}

// run does a job: its choices become nodes, or, where a single token was put in place, the rest of that node.
async function run(job, from, signal) {
  const { batch } = job;
  const asked = { logprobs: 1, ...job.settings }; // without them there are no tokens to show
  const prompt = tree.prefix(doc, from);
  const made = { model: job.model, settings: job.settings, batch };
  const start = doc.nodes[from];
  const single = start.parent !== null && start.tokens.length === 1 && !start.made && (asked.n ?? 1) === 1;
  const ids = [];
  if (single) {
    doc = tree.change(doc, from, { made });
    ids.push(from);
  }
  while (ids.length < (asked.n ?? 1)) {
    let id;
    [doc, id] = tree.add(doc, from, { made });
    ids.push(id);
  }
  if (doc.nodes[doc.selected].made?.batch !== batch) doc = tree.select(doc, ids[0]);
  try {
    await patiently(job.model, signal, () => api.stream($("key").value, { model: job.model, prompt, ...asked }, signal, (said) => {
      if (said.usage) $("progress").textContent = `${said.usage.prompt_tokens} + ${said.usage.completion_tokens} tokens`;
      for (const choice of said.choices ?? []) {
        const node = doc.nodes[ids[choice.index] ?? ids[0]];
        if (!node) continue; // it was removed meanwhile
        doc = tree.change(doc, node.id, { tokens: [...node.tokens, ...api.tokensOf(choice, asked.logprobs)], finish: choice.finish_reason ?? node.finish });
      }
      soon();
    }));
  } catch (error) {
    if (single) doc = tree.change(doc, from, { made: doc.nodes[from]?.tokens.length > 1 ? made : null });
    for (const id of ids) if (id !== from && !doc.nodes[id]?.tokens.length) doc = tree.remove(doc, id);
    error.form = job.form;
    throw error;
  } finally {
    unsaved = true;
    learn(job.model, ids.flatMap((id) => doc.nodes[id]?.tokens ?? []).filter((t) => t.text === null).map((t) => t.id));
    show();
  }
}

let frame = 0;
function soon() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; show(); });
}

async function scorePrompt() {
  const of = model();
  await busy(async (signal) => {
    const id = await root(of, signal);
    const answer = await patiently(of, signal, () => api.complete($("key").value, {
      model: of, prompt: tree.prefix(doc, id), max_tokens: 1, temperature: 0, prompt_logprobs: settings().logprobs ?? 5,
    }, signal));
    change(tree.select(tree.change(doc, id, { tokens: api.scored(doc.nodes[id].tokens, answer) }), id));
  });
}

function drawScores() {
  const { tokens, text } = tree.rootOf(doc, doc.selected);
  const s = score(tokens, new TextEncoder().encode(text).length);
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

// busy does one thing at a time.
async function busy(what) {
  if (running) return;
  running = new AbortController();
  $("generate").disabled = $("score").disabled = true;
  $("stop").hidden = false;
  trouble(null);
  $("progress").textContent = "Asking…";
  try {
    await what(running.signal);
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

// patiently brings a cold model's boot to its end: it counts down and asks again by itself.
async function patiently(of, signal, ask) {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (error.code !== "modal_cold_boot") throw error;
      await countdown(of, Math.max(error.retryAfter, 1), signal);
    }
  }
}

async function countdown(of, seconds, signal) {
  signal.throwIfAborted();
  for (let left = seconds; left > 0; left--) {
    $("progress").textContent = `${of} is starting: about ${left} s more. It goes on by itself.`;
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
  const prompt = doc.nodes[doc.selected].parent === null;
  const request = copying.body(prompt ? model() : modelOf(doc.selected), prompt ? $("prompt").value : tree.prefix(doc, doc.selected), settings());
  const text = { curl: () => copying.asCurl(bench.dataset.base, request), python: () => copying.asPython(bench.dataset.base, request), json: () => copying.asJSON(request) }[kind]();
  $("copied").textContent = text;
  $("copied").hidden = false;
  navigator.clipboard?.writeText(text).catch(() => { /* it stands there to be copied by hand */ });
}

const busyWords = "A request is under way. Wait for it, or stop it first.";

const saved = new Saved({
  list: $("saved"), search: $("saved-search"), name: $("name"), status: $("saved-status"),
  onOpen: openSaved,
  onErase: () => history.replaceState(null, "", "/workbench"),
});

async function openSaved(id) {
  if (running) { saved.say(busyWords); return; }
  if (unsaved && !confirm("What is here is not saved. Open the other one all the same?")) return;
  try {
    const one = await saved.load(id);
    const next = tree.unpack(one.document.tree);
    adopt(tree.rootOf(next, next.selected));
    if (one.document.settings) write($("settings"), one.document.settings);
    change(next, true);
    unsaved = false;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(id)}`);
  } catch (error) {
    trouble(error);
  }
}

async function save() {
  keepPrompt();
  try {
    await saved.save(model(), { tree: tree.pack(doc), settings: settings() });
    unsaved = false;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
  } catch (error) {
    saved.say(error.code === "conflict" ? "It was changed elsewhere since you opened it. Nothing was saved: save once more to keep yours beside it, as another one." : error.message);
  }
}

$("settings").append(...fields("p"));
$("second-settings").append(...fields("q"));
for (const form of [$("settings"), $("second-settings")]) form.addEventListener("submit", (event) => event.preventDefault());
$("generate").addEventListener("click", () => generate());
$("score").addEventListener("click", scorePrompt);
$("stop").addEventListener("click", () => running?.abort());
$("measure").addEventListener("change", show);
$("model").addEventListener("change", state);
$("prompt").addEventListener("input", () => { unsaved = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") letGo(); });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate(); });
for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
$("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("new").addEventListener("click", () => {
  if (running) { saved.say(busyWords); return; }
  if (unsaved && !confirm("What is here is not saved. Begin anew all the same?")) return;
  saved.forget();
  $("prompt").value = "";
  change(tree.newTree(), true);
  unsaved = false;
  history.replaceState(null, "", "/workbench");
});
addEventListener("beforeunload", (event) => { if (unsaved && $("prompt").value) event.preventDefault(); });

try {
  await offer();
  setInterval(() => { if (!document.hidden) offer().catch(() => { /* the next will tell */ }); }, 10_000);
  await saved.refresh();
  if (bench.dataset.prompt) await openSaved(bench.dataset.prompt);
} catch (error) {
  trouble(error);
}
bench.dataset.ready = "";
