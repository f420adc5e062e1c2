// The requests of the page for completions, which run beside each other.
import * as api from "./api.js";
import * as tree from "./tree.js";
import * as prose from "./prose.js";
import * as turns from "./turns.js";
import { $, documentChanged, model, modelOf, render, rootOfSelected, scheduleRender, select, setDocument, state } from "./state.js";
import { readForm } from "./parameters.js";
import * as blind from "./blind.js";
import { compared } from "./comparing.js";
import { Announcer } from "./announcing.js";
import { labelOf } from "./labels.js";
import { record, replace } from "./history.js";
import { resolveTexts, textsOf, tokensOfText, withText } from "./texts.js";
import { follow } from "./columns.js";
import { Pace } from "./pace.js";
import { mayRun, renderRun } from "./allowing.js";
import { retryDuringBoot, runBeside, runExclusively } from "./running.js";
import { isValid } from "./problems.js";
import * as popover from "./popover.js";

export const settings = (form = $("settings")) => readForm(form);

// identified returns the id of a node after it and those before it have token ids of the model: completions are requested with them,
// so that they continue exactly these tokens. What is written there meanwhile becomes a node of its own.
async function identified(id, signal, say) {
  const [{ doc }, requested] = [state, modelOf(id)];
  for (const node of turns.thread(doc, id)) {
    const isRoot = node.parent === null;
    if (isRoot ? node.tokens.length : !prose.isDraft(doc, node.id)) continue;
    const text = isRoot ? node.text : tree.plainText(node.tokens);
    const tokens = text || isRoot ? await retryDuringBoot(requested, signal, () => tokensOfText(requested, text, !isRoot, signal), say) : [];
    const now = state.doc.nodes[node.id];
    let same = node.id;
    if (!now || now.text !== node.text || now.tokens !== node.tokens) [state.doc, same] = isRoot ? tree.ensureRoot(state.doc, text, requested) : tree.insert(state.doc, { ...node });
    const followers = state.doc.order.filter((other) => state.doc.nodes[other].parent === same && state.doc.nodes[other].at === node.tokens.length);
    for (const [changed, fields] of [[same, { tokens }], ...followers.map((other) => [other, { at: tokens.length }])]) {
      const before = state.doc.nodes[changed];
      state.doc = tree.change(state.doc, changed, fields);
      replace(before, state.doc.nodes[changed]);
    }
    documentChanged();
    if (node.id === id) id = same;
  }
  return id;
}

// modelFor returns the model whose token ids the branch of a node has or gets: a tree of Loom has none yet.
function modelFor(id) {
  const root = tree.rootOf(state.doc, id);
  if (root.model !== null) return root.model;
  state.doc = tree.change(state.doc, root.id, { model: model() });
  replace(root, state.doc.nodes[root.id]);
  return model();
}

const isLeaf = (id) => tree.subtree(state.doc, id).length === 1;

// rootFor returns the id of the root of a text for a model. The selected one is used if it has none yet.
function rootFor(text, requested) {
  const { nodes, selected } = state.doc;
  let id;
  [state.doc, id] = tree.ensureRoot(state.doc, text, requested);
  if (nodes[id]) replace(nodes[id], state.doc.nodes[id]);
  const { parent, model: known, text: shown } = state.doc.nodes[selected];
  if (id !== selected && parent === null && known === null && shown === text && isLeaf(selected)) state.doc = tree.select(tree.remove(state.doc, selected), id);
  return id;
}

// beginning returns where a run of a model continues a branch: at its end, or after the beginning of its text. For another model than
// the branch's, the text is a prompt.
async function beginning({ id, text, cursor }, requested, signal, say) {
  const wanted = cursor === null ? text : text.slice(0, cursor);
  if (state.doc.nodes[id] && !(state.doc.nodes[id].parent === null && isLeaf(id))) modelFor(id);
  const root = state.doc.nodes[id] && tree.rootOf(state.doc, id);
  if (!root || root.model !== requested) return { id: await identified(rootFor(wanted, requested), signal, say) };
  const whole = await identified(id, signal, say);
  if (cursor === null) return { id: whole };
  const [next, part, at] = prose.split(state.doc, whole, wanted, withText(requested));
  state.doc = next;
  if (state.doc.nodes[part].parent === null) state.doc = tree.change(state.doc, part, { model: requested });
  return at === null ? { id: await identified(part, signal, say) } : { id: part, at };
}

// generate continues the selected branch, at its end or after a part of its text: with n continuations, and with up to four models
// if they are compared.
export async function generate(cursor = null) {
  if (!mayRun() || ![$("settings"), ...compared().map(({ form }) => form)].every(isValid)) return;
  const batch = `b${Date.now()}`;
  const from = { id: state.doc.selected, text: prose.textOf(state.doc, state.doc.selected, withText(modelOf(state.doc.selected))), cursor };
  const jobs = [{ model: model(), settings: settings(), form: $("settings") }, ...compared()];
  const several = jobs.length;
  const letters = several > 1 && $("blind").checked ? blind.begin(several) : [];
  if (!letters.length) blind.reveal();
  const all = jobs.map((job, i) => ({ ...job, batch, from: i ? null : from.id, several, place: i, letter: letters[i] }));
  if (letters.length) all.sort((a, b) => a.letter.localeCompare(b.letter)); // the order of their progress tells nothing
  await Promise.all(all.map((job) => run(job, (signal, say) => beginning(from, job.model, signal, say), [from.id])));
  blind.end();
}

const jobFor = (id) => ({ model: modelFor(id), settings: settings(), form: $("settings"), batch: `b${Date.now()}`, from: state.doc.selected });

// again makes other continuations in the place of the selected one.
export async function again() {
  const { parent, at } = state.doc.nodes[state.doc.selected];
  if (parent === null) await generate();
  else if (mayRun() && isValid($("settings"))) await run(jobFor(parent), () => ({ id: parent, at }));
}

// run runs a job from the place that begin returns, beside others. nodes are those that cannot be continued before it has begun.
function run(job, begin, nodes = []) {
  const label = job.letter ? `Text ${job.letter}` : job.several > 1 ? job.model : state.runs.length ? `“${labelOf(state.doc.nodes[state.doc.selected]).slice(0, 30)}”` : "";
  return runBeside({ label, nodes }, async (signal, say, entry) => runJob({ ...job, say, entry }, await begin(signal, say), signal));
}

// continueFrom continues a node at its end, with the model whose token ids it has.
export async function continueFrom(id) {
  state.sideBySide = [];
  select(id);
  if (mayRun() && isValid($("settings"))) await run(jobFor(id), async (signal, say) => ({ id: await identified(id, signal, say) }), [id]);
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
  popover.close();
  const [next, id] = tree.branch(state.doc, place.node, place.index, tokens);
  setDocument(next);
  continueFrom(id);
}

// nodesFor returns the ids of the nodes for the choices of a job. A branch that consists of its chosen tokens alone is
// continued in place, if there is one choice.
function nodesFor(job, from, at, n) {
  const made = { model: job.model, settings: job.settings, batch: job.batch };
  const start = state.doc.nodes[from];
  const inPlace = start.parent !== null && !start.made && !start.edited && n === 1 && at === start.tokens.length;
  const ids = [];
  if (inPlace) {
    state.doc = tree.change(state.doc, from, { made });
    ids.push(from);
  }
  while (ids.length < n) {
    let id;
    [state.doc, id] = tree.insert(state.doc, { parent: from, at, made });
    ids.push(id);
  }
  return ids;
}

const places = new Map(); // of models in a comparison, by the ids of their branches

// showBeside shows the branches of a run beside those of the other models of its comparison, which get as many columns each.
function showBeside({ batch, several, letter, place }, ids) {
  const added = ids.slice(0, Math.floor(4 / several));
  for (const id of added) places.set(id, place);
  const others = state.sideBySide.filter((id) => state.doc.nodes[id]?.made?.batch === batch);
  state.sideBySide = !(several > 1) ? [] : letter ? blind.add(added, letter) : [...others, ...added].sort((a, b) => places.get(a) - places.get(b));
}

// runJob requests a completion that continues a node, at its end or after some of its tokens. Each choice becomes a child, or
// continues the node in place.
async function runJob(job, { id: from, at = state.doc.nodes[from].tokens.length }, signal) {
  const params = { logprobs: 1, ...job.settings }; // without logprobs there are no token ids
  const unchanged = state.doc;
  const prompt = tree.prefix(state.doc, from, at);
  const before = state.doc.nodes[from].tokens.length;
  const ids = nodesFor(job, from, at, params.n ?? 1);
  const inPlace = ids[0] === from;
  showBeside(job, ids);
  if (!job.letter && [job.from, from].includes(state.doc.selected)) state.doc = tree.select(state.doc, ids[0]); // else the user has gone elsewhere
  job.entry.nodes = new Set(ids);
  renderRun();
  const pace = new Pace((text) => job.say(job.letter ? text.split(" · ")[0] : text)); // its speed can tell a model
  const announcer = new Announcer($("announced"));
  announcer.begin();
  try {
    await retryDuringBoot(job.model, signal, () => {
      pace.start();
      return api.stream(api.completionsPath, $("key").value, { model: job.model, prompt, ...params }, signal, (event) => receive(event, { ids, params, pace, announcer }));
    }, job.say);
    pace.end();
  } catch (error) {
    if (inPlace) state.doc = tree.change(state.doc, from, { made: state.doc.nodes[from]?.tokens.length > before ? state.doc.nodes[from].made : null });
    for (const id of ids) if (id !== from && !state.doc.nodes[id]?.tokens.length) state.doc = tree.remove(state.doc, id);
    error.form = job.form;
    error.partial = ids.some((id) => state.doc.nodes[id]?.tokens.length);
    throw error;
  } finally {
    announcer.end();
    record(unchanged, state.doc, { ids: new Set(ids) });
    documentChanged();
    resolveTexts(job.model, ids);
    render();
  }
}

// receive adds the tokens of an event to their nodes. Those of the branch that is shown are read to users of screen readers.
function receive({ usage, choices }, { ids, params, pace, announcer }) {
  if (usage) pace.usage = usage;
  for (const choice of choices ?? []) {
    const node = state.doc.nodes[ids[choice.index] ?? ids[0]];
    if (!node) continue; // the user has removed it
    const added = api.tokensOf(choice, params.logprobs);
    pace.count(added.length);
    if (node.id === state.doc.selected) announcer.add(choice.text ?? "");
    state.doc = tree.change(state.doc, node.id, { tokens: api.joinParts(node.tokens, added), finish: choice.finish_reason ?? node.finish });
  }
  documentChanged();
  scheduleRender(follow);
}

export async function scorePrompt() {
  const requested = model();
  await runExclusively(async (signal) => {
    const id = await identified(rootFor(rootOfSelected().text, requested), signal);
    const tokens = await scoreTokens(requested, state.doc.nodes[id].tokens, signal);
    state.sideBySide = [];
    setDocument(tree.select(tree.change(state.doc, id, { tokens }), id));
  });
}

// scoreTokens returns tokens with their probabilities, but for that of the first one, which nothing precedes.
export async function scoreTokens(requested, tokens, signal) {
  if (tokens.length < 2) return tokens;
  const ids = tokens.map((token) => token.id);
  const { data } = await scoreContinuations(requested, {
    context: ids.slice(0, 1), continuations: [ids.slice(1)], tokens: true, top: settings().logprobs ?? 5,
  }, signal);
  return api.withLogprobs(tokens, data[0].token_logprobs);
}

// scoreContinuations returns the log-likelihoods of continuations.
export const scoreContinuations = (requested, fields, signal) => retryDuringBoot(requested, signal, () => api.loglikelihood($("key").value, { model: requested, ...fields }, signal));
