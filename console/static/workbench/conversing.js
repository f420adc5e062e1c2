// What a conversation asks of the model: answers, versions of them, and continuations of an assistant's turn.
import * as api from "./api.js";
import * as chatbody from "./chatbody.js";
import * as popover from "./popover.js";
import * as tree from "./tree.js";
import * as turns from "./turns.js";
import { $, documentChanged, model, modelOf, render, scheduleRender, setDocument, showModel, state } from "./state.js";
import { Announcer } from "./announcing.js";
import { Pace } from "./pace.js";
import { addDelta } from "./deltas.js";
import { fetchTexts, resolveTexts, textsOf, withText } from "./texts.js";
import { readForm } from "./parameters.js";
import { follow } from "./columns.js";
import { mayRun } from "./allowing.js";
import { retryDuringBoot, runExclusively, sayProgress } from "./running.js";
import { isValid, showError } from "./problems.js";

export const settings = () => readForm($("chat-settings"));

const announcer = new Announcer($("announced"));

// ready reports whether a request can be sent. If a parameter is not valid, it says so.
export function ready() {
  return mayRun() && isValid($("chat-settings"));
}

// addTurn adds a turn at the end of the conversation that is shown.
export function addTurn(fields) {
  setDocument(tree.select(...turns.addTurn(state.doc, state.doc.selected, fields)));
}

// wanted is the number of versions to generate. The API says what is wrong with one out of range.
const wanted = () => Math.max(1, Math.min(settings().n ?? 1, 16));

const made = (requested, batch) => ({ model: requested, settings: settings(), batch });

// answer generates the turn after another one, in n versions.
export async function answer(parent) {
  if (!ready()) return;
  const requested = model();
  const messages = turns.messagesOf(state.doc, parent);
  const batch = `b${Date.now()}`;
  const shown = state.doc.selected;
  const ids = [];
  while (ids.length < wanted()) {
    let id;
    [state.doc, id] = turns.addTurn(state.doc, parent, { role: "assistant", made: made(requested, batch) });
    ids.push(id);
  }
  state.doc = tree.select(state.doc, ids[0]);
  await run({ requested, ids, shown, request: chatbody.body(requested, messages, settings()) });
}

// extend continues an assistant's turn at its end, with the model that has begun it. A turn that others follow is continued
// in another version, so that they keep what they follow.
export async function extend(id) {
  if (state.running) return;
  showModel(state.doc.nodes[id].made?.model);
  if (!ready()) return;
  const requested = model();
  const turn = state.doc.nodes[id];
  const request = chatbody.continuing(chatbody.body(requested, turns.messagesOf(state.doc, id), settings()));
  const begun = { tokens: turns.within(turn), made: made(requested, `b${Date.now()}`), finish: null };
  const shown = state.doc.selected;
  const ids = [];
  if (turns.isLeaf(state.doc, id)) {
    state.doc = tree.change(state.doc, id, begun);
    ids.push(id);
  }
  while (ids.length < wanted()) {
    let version;
    [state.doc, version] = turns.addVersion(state.doc, id, begun);
    ids.push(version);
  }
  state.doc = tree.select(state.doc, ids[0]);
  await run({ requested, ids, shown, request, beginning: turn });
}

// run sends a request whose choices are added to turns. Those that get nothing are removed, or become again what one of them
// has been before, and the turn that was shown is shown again.
async function run({ requested, ids, shown, request, beginning = { text: "" } }) {
  const k = request.top_logprobs ?? 0;
  const pace = new Pace(sayProgress);
  announcer.begin();
  let focusLost = false;
  await runExclusively(async (signal) => {
    render();
    focusLost = document.activeElement === document.body; // the button was on a version that is not shown any more
    if (focusLost) $("progress").querySelector(".run:last-child button").focus();
    try {
      await retryDuringBoot(requested, signal, () => {
        pace.start();
        return api.stream(api.chatPath, $("key").value, withOneMore(request), signal, (event) => receive(event, ids, k, pace));
      });
      pace.end();
    } catch (error) {
      error.form = $("chat-settings");
      error.partial = ids.some((id) => isGrown(state.doc.nodes[id], beginning));
      throw error;
    } finally {
      restoreUnchanged(ids, beginning, shown);
      announcer.end();
      documentChanged();
      resolveTexts(requested, ids);
      render();
    }
  });
  if (focusLost) $(`turn-${state.doc.selected}`)?.querySelector("[data-control=regenerate]")?.focus({ preventScroll: true });
}

// withOneMore returns a request with one more alternative than are shown, if the model takes it: see deltas.js.
function withOneMore(request) {
  const { max_logprobs } = state.options.models.find(({ id }) => id === request.model) ?? {};
  const more = (request.top_logprobs ?? 0) + 1;
  return more > 1 && more <= Math.min(max_logprobs || chatbody.mostAlternatives, chatbody.mostAlternatives) ? { ...request, top_logprobs: more } : request;
}

// isGrown reports whether a turn has more than at the beginning of a request.
const isGrown = (turn, beginning) => Boolean(turn) && ["text", "reasoning"].some((name) => (turn[name] ?? "") !== (beginning[name] ?? ""))
  || (turn?.calls?.length ?? 0) > (beginning.calls?.length ?? 0);

// restoreUnchanged undoes what a request has prepared and not filled.
function restoreUnchanged(ids, beginning, shown) {
  for (const id of ids) {
    const turn = state.doc.nodes[id];
    if (!turn || turn.finish || isGrown(turn, beginning)) continue;
    const wasSelected = state.doc.selected === id;
    state.doc = id === beginning.id ? tree.change(state.doc, id, beginning) : tree.remove(state.doc, id);
    if (wasSelected) state.doc = tree.select(state.doc, shown);
  }
}

// receive adds what an event brings to the turns.
function receive({ usage, choices }, ids, k, pace) {
  if (usage) pace.usage = usage;
  for (const choice of choices ?? []) {
    const turn = state.doc.nodes[ids[choice.index]];
    if (!turn) continue; // the user has removed it
    pace.count(choice.logprobs?.content?.length ?? 1);
    state.doc = tree.change(state.doc, turn.id, addDelta(turn, choice, k));
    if (choice.index === 0) announcer.add(choice.delta?.content ?? "");
  }
  documentChanged();
  scheduleRender(follow);
}

// regenerate makes another version of an assistant's turn.
export const regenerate = (id) => answer(state.doc.nodes[id].parent);

// editTurn makes a version of a turn with another text. sends says that the model answers it.
export async function editTurn(id, text, sends) {
  if (state.running || (sends && !ready())) return;
  const { role } = state.doc.nodes[id];
  const fields = role === "assistant" ? { text, tokens: turns.words(text), edited: true, finish: null } : { text };
  const [next, version] = turns.addVersion(state.doc, id, fields);
  setDocument(tree.select(next, version));
  $(`turn-${version}`).querySelector("[data-control=edit]").focus();
  if (sends) await answer(version);
}

// sendResults adds the results of an assistant's calls as turns, and goes on.
export async function sendResults(results) {
  if (!ready()) return;
  for (const { call, text } of results) addTurn({ role: "tool", call, text });
  await answer(state.doc.selected);
}

// branchFrom makes a version of a turn in which another token is in the place of one, and continues it. A chat is continued as
// text, so a token that is only a part of a character cannot be taken.
export async function branchFrom(place, alternative) {
  const requested = modelOf(place.node);
  await fetchTexts(requested, [alternative.id]);
  const text = textsOf(requested)(alternative.id);
  if (text === undefined || text.includes("\ufffd")) {
    showError(new Error("This token is a part of a character, or its text is not known. A conversation is continued as text, so only whole characters can be taken."));
    return;
  }
  const ends = text === "" || turns.endsText(text);
  await branchWith(place, [{ ...alternative, text: ends ? "" : text, top: place.token.top }], ends);
}

// branchWithText is branchFrom for a text that the user wrote.
export const branchWithText = (place, text) => branchWith(place, turns.words(text), false);

async function branchWith(place, tokens, ends) {
  if (state.running || (!ends && !ready())) return;
  popover.close();
  await resolveTexts(modelOf(place.node), [place.node]);
  const turn = state.doc.nodes[place.node];
  if (!turn) return; // the user has removed it
  const before = turns.cut(turn, place.index, (token) => withText(modelOf(turn.id))({ token }).token);
  if (before.text === null) {
    showError(new Error("The text before this token is not known, because the model’s tokenizer did not answer. Try again."));
    return;
  }
  const [next, id] = turns.addVersion(state.doc, turn.id, {
    text: before.text + tree.plainText(tokens), tokens: [...before.tokens, ...tokens], calls: [], finish: ends ? "stop" : null, edited: true,
  });
  setDocument(tree.select(next, id));
  if (!ends) await extend(id);
}
