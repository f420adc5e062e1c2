// The workbench's page: it renders the one document, and its controls change the document.
import * as api from "./api.js";
import * as tree from "./tree.js";
import * as copying from "./copying.js";
import { createFields, fillForm, markInvalid, readForm } from "./parameters.js";
import { SavedPrompts } from "./saved.js";
import { score } from "./measures.js";
import { TokenView, beginOf, renderDetails, textOf } from "./tokens.js";
import { Drafts } from "./drafts.js";

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
    const node = doc.nodes[id];
    const places = tree.path(doc, id).map(withText(modelOf(id)));
    const begin = node.parent === null || el.dataset.whole ? 0 : beginOf(places, places.findIndex((place) => doc.nodes[place.node].parent !== null));
    const hidden = el.querySelector(".whole");
    hidden.hidden = begin <= 0;
    hidden.textContent = `Show all of the prompt (${begin.toLocaleString("en")} more tokens)`;
    views.get(el.id).render(places, $("measure").value, Math.max(begin, 0));
    const label = node.parent === null ? "prompt" : node.finish;
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
  el.setAttribute("aria-label", isPrompt ? "Tokens of the prompt" : "Continuation");
  const head = document.createElement("div");
  head.className = "line";
  const label = document.createElement("small");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = "Continue";
  button.hidden = isPrompt;
  button.addEventListener("click", () => { if (!running) { select(id); continueFrom(id); } });
  head.append(label, button);
  const text = document.createElement("div");
  text.id = `tokens-${id}`;
  text.className = "tokens mono";
  text.setAttribute("aria-label", "Tokens: arrow keys to move, Enter to pin");
  const whole = document.createElement("button");
  whole.type = "button";
  whole.className = "quiet whole";
  whole.hidden = true;
  whole.addEventListener("click", () => { el.dataset.whole = "1"; render(); });
  el.append(head, whole, text);
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
    const text = isPrompt ? (severalRoots ? node.text : $("prompt").value) : textOf(node.tokens.slice(0, 60).map((t) => withText(modelOf(node.id))({ token: t }).token));
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
  drafts.schedule();
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

// resolveTexts requests the texts of the tokens of nodes whose stream has not sent them, such as parts of characters.
async function resolveTexts(model, ids) {
  for (const id of ids) {
    const tokens = doc.nodes[id]?.tokens ?? [];
    if (tokens.every((token) => token.text !== null && !token.joins)) continue;
    try {
      const texts = await api.detokenize(model, tokens.map((token) => token.id));
      const now = doc.nodes[id]?.tokens;
      if (now?.length !== tokens.length) continue; // it goes on growing, and is resolved at its end
      doc = tree.change(doc, id, { tokens: api.withTexts(now, texts) });
    } catch {
      continue; // the ids are shown instead
    }
  }
  render();
  drafts.schedule();
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
  const texts = await api.detokenize(model, tokens);
  tokens.forEach((token, i) => tokenTexts.set(`${model} ${token}`, texts.pieces[i]));
  doc = tree.change(doc, id, { tokens: api.withTexts(tokens.map((token) => ({ id: token, text: null, logprob: null, top: [] })), texts) });
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
      if (usage) $("progress").textContent = `${usage.prompt_tokens.toLocaleString("en")} prompt + ${usage.completion_tokens.toLocaleString("en")} completion tokens`;
      for (const choice of choices ?? []) {
        const node = doc.nodes[ids[choice.index] ?? ids[0]];
        if (!node) continue; // the user has removed it
        doc = tree.change(doc, node.id, { tokens: api.joinParts(node.tokens, api.tokensOf(choice, params.logprobs)), finish: choice.finish_reason ?? node.finish });
      }
      scheduleRender();
    }));
  } catch (error) {
    if (inPlace) doc = tree.change(doc, from, { made: doc.nodes[from]?.tokens.length > 1 ? made : null });
    for (const id of ids) if (id !== from && !doc.nodes[id]?.tokens.length) doc = tree.remove(doc, id);
    error.form = job.form;
    error.partial = ids.some((id) => doc.nodes[id]?.tokens.length);
    throw error;
  } finally {
    unsaved = true;
    resolveTexts(job.model, ids);
    render();
  }
}

// scheduleRender renders once before the next frame, however often it is called.
let frame = 0;
function scheduleRender() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; render(); follow(); drafts.schedule(); });
}

// follow keeps the end of the first growing column in the window, unless the user has scrolled since the request began.
let following = false;
for (const type of ["wheel", "touchmove"]) addEventListener(type, () => { following = false; }, { passive: true });
addEventListener("keydown", (event) => { if (["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown", " "].includes(event.key)) following = false; });
function follow() {
  if (following) $("columns").firstElementChild?.scrollIntoView({ block: "nearest" });
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
  following = true;
  $("progress").textContent = "Generating…";
  try {
    await task(running.signal);
    if ($("progress").textContent === "Generating…") $("progress").textContent = "";
  } catch (error) {
    $("progress").textContent = error.name === "AbortError" ? "Stopped. The text so far is kept, and is charged." : "";
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
    $("progress").textContent = `${model} is starting: about ${left} s left. Continues automatically.`;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
  }
}

// advice has additional texts by error code.
const advice = {
  budget_exceeded: (e) => `${e.scope === "key" ? "Key" : "Account"}’s ${e.window === "day" ? "daily" : "monthly"} budget: ${e.used?.toLocaleString("en")} of ${e.limit?.toLocaleString("en")} tokens used, ${(e.reserved ?? 0).toLocaleString("en")} reserved by running requests.${e.resets_at ? ` Resets ${new Date(e.resets_at).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" })}.` : ""}`,
  invalid_api_key: () => "The key may be paused or revoked. Choose another key, or create one on the dashboard.",
  context_length_exceeded: () => "Shorten the prompt, or lower max_tokens.",
  unauthorized: () => "Sign in again to continue; what you have typed is kept.",
  connection_lost: () => "Check your connection and try again.",
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
  if (error.partial) p.append(" The text generated so far is kept. To go on from its end, press “Continue” above it.");
  if (error.details?.request_id) {
    const small = document.createElement("small");
    small.textContent = ` ${error.code} · ${error.details.request_id}`;
    p.append(small);
  }
  box.replaceChildren(p);
  if (error.param) markInvalid(error.form ?? $("settings"), error.param);
}

// --- models, keys and saved prompts

async function loadOptions(mayAsk = true) {
  options = await api.getOptions(mayAsk);
  for (const id of ["model", "second-model"]) setOptions($(id), options.models.map((m) => [m.id, `${m.id} (${m.status})`]));
  setOptions($("key"), options.keys.filter((k) => k.state === "active").map((k) => [k.id, `${k.name} ${k.prefix}…`]));
  $("generate").disabled = $("score").disabled = !$("key").value || Boolean(running);
  if (!$("key").value) {
    const p = document.createElement("p");
    p.className = "notice warn";
    const link = document.createElement("a");
    link.href = "/keys/new";
    link.textContent = "Create key";
    p.append("The workbench needs an active key: its budget and queue apply. ", link);
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
  const boot = m.boot_seconds ? ` Starts with your request, in about ${m.boot_seconds} s.` : "";
  $("model-state").textContent = `${m.status === "warm" ? "Ready" : m.status}${m.max_model_len ? `, context of ${m.max_model_len.toLocaleString("en")} tokens` : ""}.${m.status === "warm" ? "" : boot}`;
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

const runningMessage = "A request is running. Wait for it, or stop it first.";

const saved = new SavedPrompts({
  list: $("saved"), search: $("saved-search"), name: $("name"), status: $("saved-status"), usage: $("saved-usage"),
  onOpen: openSaved,
  onDelete: () => history.replaceState(null, "", "/workbench"),
});

async function openSaved(id) {
  if (running) { saved.setStatus(runningMessage); return; }
  if (unsaved && !confirm("You have unsaved changes. Open the other prompt and discard them?")) return;
  if (unsaved) drafts.remove();
  try {
    const prompt = await saved.load(id);
    const next = tree.unpack(prompt.document.tree);
    showPrompt(tree.rootOf(next, next.selected));
    if (prompt.document.settings) fillForm($("settings"), prompt.document.settings);
    setDocument(next);
    unsaved = false;
    restoreDraft();
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(id)}`);
  } catch (error) {
    showError(error);
  }
}

// The draft of what is not saved. A reload, a crash or a lost session does not lose it.
const drafts = new Drafts(bench.dataset.account, () => saved.id, () => unsaved && {
  prompt: $("prompt").value, model: model(), settings: settings(), name: saved.name.value, version: saved.version, tree: tree.pack(doc),
}, (text) => saved.setStatus(text));

// restoreDraft shows the draft of the prompt that is open.
function restoreDraft() {
  const draft = drafts.read();
  if (!draft) return;
  const next = tree.unpack(draft.tree);
  showPrompt(tree.rootOf(next, next.selected));
  $("prompt").value = draft.prompt;
  if ([...$("model").options].some((o) => o.value === draft.model)) $("model").value = draft.model;
  fillForm($("settings"), draft.settings);
  Object.assign(saved, { version: draft.version });
  saved.name.value = draft.name;
  setDocument(next);
  $("progress").textContent = `Draft of ${new Date(draft.time).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" })} restored.`;
}

async function save() {
  keepPrompt();
  try {
    drafts.remove();
    await saved.save(model(), { tree: tree.pack(doc), settings: settings() });
    unsaved = false;
    drafts.remove();
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
  } catch (error) {
    drafts.schedule();
    saved.setStatus(error.code === "conflict" ? "This prompt was changed elsewhere since you opened it, so nothing was saved. Save again to keep your version as another prompt." : error.message);
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
$("prompt").addEventListener("input", () => { unsaved = true; drafts.schedule(); });
for (const form of [$("settings"), $("second-settings")]) form.addEventListener("input", () => drafts.schedule());
document.addEventListener("keydown", (event) => { if (event.key === "Escape") unpin(); });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate(); });
for (const button of document.querySelectorAll("[data-copy-as]")) button.addEventListener("click", () => copyAs(button.dataset.copyAs));
$("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("new").addEventListener("click", () => {
  if (running) { saved.setStatus(runningMessage); return; }
  if (unsaved && !confirm("You have unsaved changes. Discard them and start over?")) return;
  saved.close();
  $("prompt").value = "";
  setDocument(tree.newTree());
  unsaved = false;
  drafts.remove();
  history.replaceState(null, "", "/workbench");
});
addEventListener("beforeunload", (event) => { if (unsaved && $("prompt").value && !drafts.flush()) event.preventDefault(); });
addEventListener("pagehide", () => drafts.flush());

try {
  await loadOptions();
  setInterval(() => { if (!document.hidden) loadOptions(false).catch(() => { /* the next poll may succeed */ }); }, 10_000);
  await saved.refresh();
  if (bench.dataset.prompt) await openSaved(bench.dataset.prompt);
  else restoreDraft();
} catch (error) {
  showError(error);
}
bench.dataset.ready = "";
