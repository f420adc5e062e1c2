// The workbench's page: it renders the one document, and its controls change the document.
import * as api from "./api.js";
import * as tree from "./tree.js";
import * as copying from "./copying.js";
import { createFields, fillForm, markInvalid, readForm } from "./parameters.js";
import { SavedPrompts } from "./saved.js";
import { score } from "./measures.js";
import { TokenView, renderDetails, visibleText } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const bench = $("bench");
let doc = tree.newTree();
let options = { keys: [], models: [] };
let running = null; // AbortController of the task that is running
let unsaved = false;
const tokenTexts = new Map(); // by "model id"
const views = new Map(); // TokenViews by the ids of their columns

// --- rendering

const model = () => $("model").value;
const modelOf = (id) => tree.rootOf(doc, id).model;
const textsOf = (model) => (id) => tokenTexts.get(`${model} ${id}`);

function render() {
  const nodes = visibleNodes();
  const box = $("columns");
  const ids = nodes.map((id) => `column-${id}`);
  for (const el of [...box.children]) if (!ids.includes(el.id)) { views.delete(el.id); el.remove(); }
  nodes.forEach((id, i) => {
    const el = $(`column-${id}`) ?? createColumn(id);
    if (box.children[i] !== el) box.insertBefore(el, box.children[i] ?? null);
    views.get(el.id).render(tree.path(doc, id).map(withText(modelOf(id))), $("measure").value);
    const node = doc.nodes[id];
    const label = node.parent === null ? "the prompt" : node.finish;
    el.querySelector("small").textContent = [modelOf(id), label].filter(Boolean).join(" · ");
    el.classList.toggle("chosen", id === doc.selected);
  });
  box.hidden = nodes.length === 0;
  renderTree();
  renderScores();
}

// withText returns a function that adds the text to a place whose token has none, if the text is known. It returns the same
// token every time, so that TokenView finds it unchanged.
const tokensWithText = new WeakMap();
const withText = (model) => (place) => {
  if (place.token.text !== null) return place;
  const text = textsOf(model)(place.token.id);
  if (text === undefined) return place;
  if (!tokensWithText.has(place.token)) tokensWithText.set(place.token, { ...place.token, text });
  return { ...place, token: tokensWithText.get(place.token) };
};

// visibleNodes returns the nodes shown side by side: the selected one and those generated together with it.
function visibleNodes() {
  const node = doc.nodes[doc.selected];
  if (node.parent === null) return node.tokens.length ? [node.id] : [];
  const batch = node.made?.batch;
  return batch ? doc.order.filter((id) => doc.nodes[id].made?.batch === batch) : [doc.selected];
}

function createColumn(id) {
  const el = document.createElement("section");
  el.id = `column-${id}`;
  el.className = "column";
  const isPrompt = doc.nodes[id].parent === null;
  el.setAttribute("aria-label", isPrompt ? "The prompt's tokens" : "A continuation");
  const head = document.createElement("div");
  head.className = "line";
  const label = document.createElement("small");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Go on from its end";
  button.hidden = isPrompt;
  button.addEventListener("click", () => { if (!running) { select(id); continueFrom(id); } });
  head.append(label, button);
  const text = document.createElement("div");
  text.id = `tokens-${id}`;
  text.className = "tokens mono";
  text.setAttribute("aria-label", "Tokens; the arrow keys move, Enter opens one");
  el.append(head, text);
  $("columns").append(el);
  views.set(el.id, new TokenView(text, { onMove: inspect, onSelect: togglePin, followsPointer: () => !isPinned() }));
  return el;
}

function renderTree() {
  const severalRoots = tree.roots(doc).length > 1;
  $("tree").replaceChildren(...tree.walk(doc).map(([node, depth]) => {
    const item = document.createElement("li");
    item.style.paddingInlineStart = `${Math.min(depth, 12) * 0.9}rem`;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    const isPrompt = node.parent === null;
    const text = isPrompt ? (severalRoots ? node.text : $("prompt").value) : node.tokens.slice(0, 60).map((t) => visibleText(withText(modelOf(node.id))({ token: t }).token)).join("");
    const label = isPrompt ? `Prompt${severalRoots && node.model ? ` at ${node.model}` : ""}: ` : "";
    button.textContent = label + (text.replaceAll(/\s+/g, " ").slice(0, 60) || "(empty)");
    if (node.id === doc.selected) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => select(node.id));
    item.append(button);
    if (!isPrompt || severalRoots) {
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Remove the branch ${button.textContent}`);
      remove.addEventListener("click", () => setDocument(tree.remove(doc, node.id)));
      item.append(remove);
    }
    return item;
  }));
}

function setDocument(next) {
  doc = next;
  unsaved = true;
  render();
}

// keepPrompt adds the text of the prompt field to the document, so that selecting another root does not lose it.
function keepPrompt() {
  const text = $("prompt").value;
  if (!text || tree.roots(doc).some((id) => doc.nodes[id].text === text)) return;
  [doc] = tree.ensureRoot(doc, text, null);
}

// select selects a node, and shows its prompt and its model.
function select(id) {
  keepPrompt();
  showPrompt(tree.rootOf(doc, id));
  setDocument(tree.select(doc, id));
}

function showPrompt(root) {
  $("prompt").value = root.text;
  if ([...$("model").options].some((o) => o.value === root.model)) $("model").value = root.model;
  renderModelState();
}

// --- the token whose details are shown

let inspected = null; // its place
let pinnedBox = null; // the box that it was pinned in, or null
let fetchTimer = 0;

// isPinned reports whether the pointer leaves the token shown, so that it can move to the alternatives. Removing the box
// from the page ends it.
const isPinned = () => Boolean(pinnedBox?.isConnected);

function inspect(place, box = null) {
  inspected = place;
  pinnedBox = box;
  renderInspected();
  clearTimeout(fetchTimer);
  fetchTimer = setTimeout(() => fetchTexts(modelOf(place.node), [place.token.id, ...(place.token.top ?? []).map((t) => t.id)]), 60);
}

function renderInspected() {
  const place = inspected;
  if (doc.nodes[place.node]) renderDetails($("token"), place, textsOf(modelOf(place.node)), (alternative) => branchFrom(place, alternative), isPinned());
}

// togglePin pins a token, or unpins the one that is pinned.
function togglePin(place, box) {
  const same = isPinned() && inspected.node === place.node && inspected.index === place.index;
  inspect(place, same ? null : box);
  if (isPinned()) $("token").querySelector("button:enabled")?.focus();
}

function unpin() {
  if (!isPinned()) return;
  if ($("token").contains(document.activeElement)) pinnedBox.focus();
  inspect(inspected);
}

// fetchTexts requests the texts of token ids that are not known.
async function fetchTexts(model, ids) {
  const missing = [...new Set(ids)].filter((id) => !tokenTexts.has(`${model} ${id}`));
  if (!missing.length) return;
  try {
    const { pieces } = await api.detokenize(model, missing);
    missing.forEach((id, i) => tokenTexts.set(`${model} ${id}`, pieces[i]));
  } catch {
    return; // the ids are shown instead
  }
  if (inspected) renderInspected();
  render();
}

// branchFrom replaces a token by an alternative in a new branch, and continues it.
function branchFrom(place, alternative) {
  if (running) return;
  pinnedBox = null;
  const token = { ...alternative, text: textsOf(modelOf(place.node))(alternative.id) ?? null, top: place.token.top };
  const [next, id] = tree.branch(doc, place.node, place.index, token);
  setDocument(next);
  select(id);
  continueFrom(id);
}

// --- requests

function settings(form = $("settings")) { return readForm(form); }

// tokenizedRoot returns the id of the prompt's root for a model, with its tokens. Completions are requested with token ids,
// so that they continue exactly these tokens.
async function tokenizedRoot(model, signal) {
  let id;
  [doc, id] = tree.ensureRoot(doc, $("prompt").value, model);
  if (doc.nodes[id].tokens.length) return id;
  const text = doc.nodes[id].text;
  const { tokens } = await retryDuringBoot(model, signal, () => api.tokenize(model, text, signal));
  const { pieces } = await api.detokenize(model, tokens);
  tokens.forEach((token, i) => tokenTexts.set(`${model} ${token}`, pieces[i]));
  doc = tree.change(doc, id, { tokens: tokens.map((token, i) => ({ id: token, text: pieces[i], logprob: null, top: [] })) });
  unsaved = true;
  return id;
}

// generate continues the prompt: with n continuations, and with two models if they are compared.
async function generate() {
  const batch = `b${Date.now()}`;
  const jobs = [{ model: model(), settings: settings(), form: $("settings"), batch }];
  if ($("compare").checked) jobs.push({ model: $("second-model").value, settings: settings($("second-settings")), form: $("second-settings"), batch });
  await runExclusively((signal) => waitForAll(jobs.map(async (job) => runJob(job, await tokenizedRoot(job.model, signal), signal))));
}

// continueFrom continues a node at its end, with the model whose token ids it has.
async function continueFrom(id) {
  const job = { model: modelOf(id), settings: settings(), form: $("settings"), batch: `b${Date.now()}` };
  await runExclusively((signal) => runJob(job, id, signal));
}

// waitForAll waits until all promises are settled, and then throws the first error.
async function waitForAll(promises) {
  const failed = (await Promise.allSettled(promises)).find((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}

// runJob requests a completion that continues a node. Each choice becomes a child. A branch that consists of its chosen token
// alone is continued in place instead, if there is one choice.
async function runJob(job, from, signal) {
  const { batch } = job;
  const params = { logprobs: 1, ...job.settings }; // without logprobs there are no token ids
  const prompt = tree.prefix(doc, from);
  const made = { model: job.model, settings: job.settings, batch };
  const start = doc.nodes[from];
  const inPlace = start.parent !== null && start.tokens.length === 1 && !start.made && (params.n ?? 1) === 1;
  const ids = [];
  if (inPlace) {
    doc = tree.change(doc, from, { made });
    ids.push(from);
  }
  while (ids.length < (params.n ?? 1)) {
    let id;
    [doc, id] = tree.add(doc, from, { made });
    ids.push(id);
  }
  if (doc.nodes[doc.selected].made?.batch !== batch) doc = tree.select(doc, ids[0]);
  try {
    await retryDuringBoot(job.model, signal, () => api.stream($("key").value, { model: job.model, prompt, ...params }, signal, ({ usage, choices }) => {
      if (usage) $("progress").textContent = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`;
      for (const choice of choices ?? []) {
        const node = doc.nodes[ids[choice.index] ?? ids[0]];
        if (!node) continue; // the user has removed it
        doc = tree.change(doc, node.id, { tokens: [...node.tokens, ...api.tokensOf(choice, params.logprobs)], finish: choice.finish_reason ?? node.finish });
      }
      scheduleRender();
    }));
  } catch (error) {
    if (inPlace) doc = tree.change(doc, from, { made: doc.nodes[from]?.tokens.length > 1 ? made : null });
    for (const id of ids) if (id !== from && !doc.nodes[id]?.tokens.length) doc = tree.remove(doc, id);
    error.form = job.form;
    throw error;
  } finally {
    unsaved = true;
    fetchTexts(job.model, ids.flatMap((id) => doc.nodes[id]?.tokens ?? []).filter((t) => t.text === null).map((t) => t.id));
    render();
  }
}

// scheduleRender renders once before the next frame, however often it is called.
let frame = 0;
function scheduleRender() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; render(); });
}

async function scorePrompt() {
  const requested = model();
  await runExclusively(async (signal) => {
    const id = await tokenizedRoot(requested, signal);
    const completion = await retryDuringBoot(requested, signal, () => api.complete($("key").value, {
      model: requested, prompt: tree.prefix(doc, id), max_tokens: 1, temperature: 0, prompt_logprobs: settings().logprobs ?? 5,
    }, signal));
    setDocument(tree.select(tree.change(doc, id, { tokens: api.withPromptLogprobs(doc.nodes[id].tokens, completion) }), id));
  });
}

function renderScores() {
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

// --- progress and errors

// runExclusively runs a task unless one is running, and shows its progress and its error.
async function runExclusively(task) {
  if (running) return;
  running = new AbortController();
  $("generate").disabled = $("score").disabled = true;
  $("stop").hidden = false;
  showError(null);
  $("progress").textContent = "Asking…";
  try {
    await task(running.signal);
    if ($("progress").textContent === "Asking…") $("progress").textContent = "";
  } catch (error) {
    $("progress").textContent = error.name === "AbortError" ? "Stopped. What had come is kept, and is charged." : "";
    if (error.name !== "AbortError") showError(error);
  } finally {
    running = null;
    $("generate").disabled = $("score").disabled = false;
    $("stop").hidden = true;
  }
}

// retryDuringBoot sends a request again, after a countdown, while the model is booting.
async function retryDuringBoot(model, signal, send) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (error.code !== "modal_cold_boot") throw error;
      await countDown(model, Math.max(error.retryAfter, 1), signal);
    }
  }
}

async function countDown(model, seconds, signal) {
  signal.throwIfAborted();
  for (let left = seconds; left > 0; left--) {
    $("progress").textContent = `${model} is starting: about ${left} s more. It goes on by itself.`;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
  }
}

// advice has additional texts by error code.
const advice = {
  budget_exceeded: (e) => `Used ${e.used?.toLocaleString()} of ${e.limit?.toLocaleString()} tokens, ${e.reserved?.toLocaleString() ?? 0} more are reserved by requests under way. The cap is that of the ${e.scope}, for the ${e.window}${e.resets_at ? `, and starts anew ${new Date(e.resets_at).toLocaleString()}` : ""}.`,
  invalid_api_key: () => "The key may have been paused or revoked. Choose another, or make one on the dashboard.",
  context_length_exceeded: () => "Shorten the prompt, or ask for fewer tokens.",
  overloaded: (e, error) => `Try again in ${error.retryAfter || "a few"} seconds.`,
};

// showError shows an error and marks the field that it is about. null removes the last error.
function showError(error) {
  const box = $("error");
  for (const form of [$("settings"), $("second-settings")]) markInvalid(form, null);
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
  if (error.param) markInvalid(error.form ?? $("settings"), error.param);
}

// --- models, keys and saved prompts

async function loadOptions() {
  options = await api.getOptions();
  for (const id of ["model", "second-model"]) setOptions($(id), options.models.map((m) => [m.id, `${m.id} (${m.status})`]));
  setOptions($("key"), options.keys.filter((k) => k.state === "active").map((k) => [k.id, `${k.name} ${k.prefix}…`]));
  $("generate").disabled = $("score").disabled = !$("key").value || Boolean(running);
  if (!$("key").value) {
    const p = document.createElement("p");
    p.className = "notice warn";
    const link = document.createElement("a");
    link.href = "/keys/new";
    link.textContent = "make one on the dashboard";
    p.append("The workbench asks with one of your keys, so that its budget and queue count. You have none that is active: ", link, ".");
    $("error").replaceChildren(p);
  }
  renderModelState();
}

function setOptions(select, entries) {
  const selected = select.value;
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, value === selected)));
}

function renderModelState() {
  const m = options.models.find((option) => option.id === model());
  if (!m) return;
  const boot = m.boot_seconds ? ` A start takes about ${m.boot_seconds} s and begins with your request.` : "";
  $("model-state").textContent = `${m.status}${m.max_model_len ? `, ${m.max_model_len.toLocaleString()} tokens of context` : ""}.${m.status === "warm" ? "" : boot}`;
  for (const form of [$("settings"), $("second-settings")]) if (m.max_logprobs) form.elements.logprobs.max = m.max_logprobs;
}

function copyAs(kind) {
  const isPrompt = doc.nodes[doc.selected].parent === null;
  const request = copying.body(isPrompt ? model() : modelOf(doc.selected), isPrompt ? $("prompt").value : tree.prefix(doc, doc.selected), settings());
  const text = { curl: () => copying.asCurl(bench.dataset.base, request), python: () => copying.asPython(bench.dataset.base, request), json: () => copying.asJSON(request) }[kind]();
  $("copied").textContent = text;
  $("copied").hidden = false;
  navigator.clipboard?.writeText(text).catch(() => { /* the user can copy the text that is shown */ });
}

const runningMessage = "A request is under way. Wait for it, or stop it first.";

const saved = new SavedPrompts({
  list: $("saved"), search: $("saved-search"), name: $("name"), status: $("saved-status"),
  onOpen: openSaved,
  onDelete: () => history.replaceState(null, "", "/workbench"),
});

async function openSaved(id) {
  if (running) { saved.setStatus(runningMessage); return; }
  if (unsaved && !confirm("What is here is not saved. Open the other one all the same?")) return;
  try {
    const prompt = await saved.load(id);
    const next = tree.unpack(prompt.document.tree);
    showPrompt(tree.rootOf(next, next.selected));
    if (prompt.document.settings) fillForm($("settings"), prompt.document.settings);
    setDocument(next);
    unsaved = false;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(id)}`);
  } catch (error) {
    showError(error);
  }
}

async function save() {
  keepPrompt();
  try {
    await saved.save(model(), { tree: tree.pack(doc), settings: settings() });
    unsaved = false;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
  } catch (error) {
    saved.setStatus(error.code === "conflict" ? "It was changed elsewhere since you opened it. Nothing was saved: save once more to keep yours beside it, as another one." : error.message);
  }
}

$("settings").append(...createFields("p"));
$("second-settings").append(...createFields("q"));
for (const form of [$("settings"), $("second-settings")]) form.addEventListener("submit", (event) => event.preventDefault());
$("generate").addEventListener("click", () => generate());
$("score").addEventListener("click", scorePrompt);
$("stop").addEventListener("click", () => running?.abort());
$("measure").addEventListener("change", render);
$("model").addEventListener("change", renderModelState);
$("prompt").addEventListener("input", () => { unsaved = true; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") unpin(); });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate(); });
for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
$("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("new").addEventListener("click", () => {
  if (running) { saved.setStatus(runningMessage); return; }
  if (unsaved && !confirm("What is here is not saved. Begin anew all the same?")) return;
  saved.close();
  $("prompt").value = "";
  setDocument(tree.newTree());
  unsaved = false;
  history.replaceState(null, "", "/workbench");
});
addEventListener("beforeunload", (event) => { if (unsaved && $("prompt").value) event.preventDefault(); });

try {
  await loadOptions();
  setInterval(() => { if (!document.hidden) loadOptions().catch(() => { /* the next poll may succeed */ }); }, 10_000);
  await saved.refresh();
  if (bench.dataset.prompt) await openSaved(bench.dataset.prompt);
} catch (error) {
  showError(error);
}
bench.dataset.ready = "";
