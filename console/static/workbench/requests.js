// The requests of the page for completions. One task runs at a time; a task can send several requests.
import * as api from "./api.js";
import * as tree from "./tree.js";
import { $, bench, documentChanged, model, modelOf, render, scheduleRender, select, setDocument, state } from "./state.js";
import { readForm } from "./parameters.js";
import { secondSettings, showRuns } from "./comparing.js";
import { showError } from "./problems.js";
import { resolveTexts, textsOf, tokensOfText } from "./texts.js";
import { follow, startFollowing } from "./columns.js";
import { Pace } from "./pace.js";
import { mayRun, renderRun } from "./allowing.js";
import * as popover from "./popover.js";

const sayProgress = (text) => { $("progress").textContent = text; };

export const settings = (form = $("settings")) => readForm(form);

// tokenizedRoot returns the id of the prompt's root for a model, with its tokens. Completions are requested with token ids,
// so that they continue exactly these tokens.
async function tokenizedRoot(model, signal, say) {
  let id;
  [state.doc, id] = tree.ensureRoot(state.doc, $("prompt").value, model);
  if (state.doc.nodes[id].tokens.length) return id;
  const tokens = await retryDuringBoot(model, signal, () => tokensOfText(model, state.doc.nodes[id].text, false, signal), say);
  state.doc = tree.change(state.doc, id, { tokens });
  documentChanged();
  return id;
}

// generate continues the prompt: with n continuations, and with two models if they are compared.
export async function generate() {
  const batch = `b${Date.now()}`;
  const jobs = [{ model: model(), settings: settings(), form: $("settings"), batch }];
  if ($("compare").checked) jobs.push({ model: $("second-model").value, settings: secondSettings(), form: $("second-settings"), batch });
  const lines = showRuns(jobs.map((job) => job.model));
  await runExclusively((signal) => waitForAll(jobs.map((job, i) => runInLine(job, lines[i], jobs.length > 1, signal))));
}

// runInLine runs a job and shows its progress in its line, which says how it has ended if there are several.
async function runInLine(job, say, several, signal) {
  if (several) say("Generating…");
  try {
    await runJob({ ...job, say }, await tokenizedRoot(job.model, signal, say), signal);
  } catch (error) {
    if (several) say(error.name === "AbortError" ? "Stopped. The text so far is kept, and is charged." : "Failed.");
    throw Object.assign(error, { isSaid: several });
  }
}

// continueFrom continues a node at its end, with the model whose token ids it has.
export async function continueFrom(id) {
  if (state.running) return;
  state.sideBySide = [];
  select(id);
  if (!mayRun()) return;
  const job = { model: modelOf(id), settings: settings(), form: $("settings"), batch: `b${Date.now()}` };
  await runExclusively((signal) => runJob(job, id, signal));
}

// branchFrom replaces a token by an alternative in a new branch, and continues it.
export function branchFrom(place, alternative) {
  const token = { ...alternative, text: textsOf(modelOf(place.node))(alternative.id) ?? null, top: place.token.top };
  branchWithTokens(place, [token]);
}

// branchWithText replaces a token by the tokens of a text in a new branch, and continues it.
export async function branchWithText(place, text) {
  let tokens;
  await runExclusively(async (signal) => {
    const requested = modelOf(place.node);
    tokens = await retryDuringBoot(requested, signal, () => tokensOfText(requested, text, true, signal));
  });
  if (tokens?.length) branchWithTokens(place, tokens);
}

function branchWithTokens(place, tokens) {
  if (state.running) return;
  popover.close();
  const [next, id] = tree.branch(state.doc, place.node, place.index, tokens);
  setDocument(next);
  continueFrom(id);
}

// editBranch adds a branch with a changed text in the place of the text that a node's path has after the prompt. It
// reports whether it has.
export async function editBranch(id, text) {
  const requested = modelOf(id);
  const { places } = tree.continuation(state.doc, id);
  return runExclusively(async (signal) => {
    const kept = tree.unchangedBy(places.map(({ token }) => ({ ...token, text: token.text ?? textsOf(requested)(token.id) ?? null })), text);
    const unchanged = tree.plainText(places.slice(0, kept).map(({ token }) => token));
    const changed = text.slice(unchanged.length);
    const tokens = changed ? await retryDuringBoot(requested, signal, () => tokensOfText(requested, changed, true, signal)) : [];
    // The new node follows the last token that is kept, or precedes the first one of the continuation.
    const at = kept ? places[kept - 1] : null;
    const first = state.doc.nodes[places[0].node];
    const [next, edited] = at ? tree.branch(state.doc, at.node, at.index + 1, tokens) : tree.branch(state.doc, first.parent, first.at, tokens);
    state.sideBySide = [];
    setDocument(tree.select(tree.change(next, edited, { edited: true }), edited));
  });
}

// waitForAll waits until all promises are settled, and then throws the first error.
async function waitForAll(promises) {
  const failed = (await Promise.allSettled(promises)).find((result) => result.status === "rejected");
  if (failed) throw failed.reason;
}

// nodesFor returns the ids of the nodes for the choices of a job. A branch that consists of its chosen tokens alone is
// continued in place, if there is one choice.
function nodesFor(job, from, n) {
  const made = { model: job.model, settings: job.settings, batch: job.batch };
  const start = state.doc.nodes[from];
  const inPlace = start.parent !== null && !start.made && !start.edited && n === 1;
  const ids = [];
  if (inPlace) {
    state.doc = tree.change(state.doc, from, { made });
    ids.push(from);
  }
  while (ids.length < n) {
    let id;
    [state.doc, id] = tree.add(state.doc, from, { made });
    ids.push(id);
  }
  return ids;
}

// runJob requests a completion that continues a node. Each choice becomes a child, or continues the node in place.
async function runJob(job, from, signal) {
  const params = { logprobs: 1, ...job.settings }; // without logprobs there are no token ids
  const prompt = tree.prefix(state.doc, from);
  const before = state.doc.nodes[from].tokens.length;
  const ids = nodesFor(job, from, params.n ?? 1);
  const inPlace = ids[0] === from;
  state.sideBySide = [];
  if (state.doc.nodes[state.doc.selected].made?.batch !== job.batch) state.doc = tree.select(state.doc, ids[0]);
  const say = job.say ?? sayProgress;
  const pace = new Pace(say);
  try {
    await retryDuringBoot(job.model, signal, () => {
      pace.start();
      return api.stream(api.completionsPath, $("key").value, { model: job.model, prompt, ...params }, signal, (event) => receive(event, ids, params, pace));
    }, say);
    pace.end();
  } catch (error) {
    if (inPlace) state.doc = tree.change(state.doc, from, { made: state.doc.nodes[from]?.tokens.length > before ? state.doc.nodes[from].made : null });
    for (const id of ids) if (id !== from && !state.doc.nodes[id]?.tokens.length) state.doc = tree.remove(state.doc, id);
    error.form = job.form;
    error.partial = ids.some((id) => state.doc.nodes[id]?.tokens.length);
    throw error;
  } finally {
    documentChanged();
    resolveTexts(job.model, ids);
    render();
  }
}

// receive adds the tokens of an event to their nodes.
function receive({ usage, choices }, ids, params, pace) {
  if (usage) pace.usage = usage;
  for (const choice of choices ?? []) {
    const node = state.doc.nodes[ids[choice.index] ?? ids[0]];
    if (!node) continue; // the user has removed it
    const added = api.tokensOf(choice, params.logprobs);
    pace.count(added.length);
    state.doc = tree.change(state.doc, node.id, { tokens: api.joinParts(node.tokens, added), finish: choice.finish_reason ?? node.finish });
  }
  documentChanged();
  scheduleRender(follow);
}

export async function scorePrompt() {
  const requested = model();
  await runExclusively(async (signal) => {
    const id = await tokenizedRoot(requested, signal);
    const tokens = await scoreTokens(requested, state.doc.nodes[id].tokens, signal);
    state.sideBySide = [];
    setDocument(tree.select(tree.change(state.doc, id, { tokens }), id));
  });
}

// scoreTokens returns tokens with their probabilities. The API generates one token after them, since it cannot generate none.
export async function scoreTokens(requested, tokens, signal) {
  const completion = await retryDuringBoot(requested, signal, () => api.complete($("key").value, {
    model: requested, prompt: tokens.map((token) => token.id), max_tokens: 1, temperature: 0, prompt_logprobs: settings().logprobs ?? 5,
  }, signal));
  return api.withPromptLogprobs(tokens, completion);
}

// runExclusively runs a task unless one is running, shows its progress and its error, and reports whether it succeeded.
export async function runExclusively(task) {
  if (state.running) return false;
  state.running = new AbortController();
  renderRun();
  $("stop").hidden = false;
  showError(null);
  startFollowing();
  $("progress").textContent = "Generating…";
  $("second-progress").textContent = "";
  try {
    await task(state.running.signal);
    if ($("progress").textContent === "Generating…") $("progress").textContent = "";
    return true;
  } catch (error) {
    if (!error.isSaid) $("progress").textContent = error.name === "AbortError" ? "Stopped. The text so far is kept, and is charged." : "";
    if (error.name !== "AbortError") showError(error);
    return false;
  } finally {
    state.running = null;
    renderRun();
    $("stop").hidden = true;
    render();
    bench.dispatchEvent(new Event("run-ended"));
  }
}

// retryDuringBoot sends a request again, after a countdown, while the model is booting.
export async function retryDuringBoot(model, signal, send, say = sayProgress) {
  for (;;) {
    try {
      return await send();
    } catch (error) {
      if (error.code !== "modal_cold_boot") throw error;
      await countDown(model, Math.max(error.retryAfter, 1), signal, say);
    }
  }
}

async function countDown(model, seconds, signal, say) {
  signal.throwIfAborted();
  for (let left = seconds; left > 0; left--) {
    say(`${model} is starting: about ${left} s left. Continues automatically.`);
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
  }
}
