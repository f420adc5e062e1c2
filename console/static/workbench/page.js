// The workbench's page: it connects the modules, and opens, saves and keeps drafts of documents.
import * as branches from "./branches.js";
import * as columns from "./columns.js";
import * as composer from "./composer.js";
import * as conversing from "./conversing.js";
import * as exporting from "./exporting.js";
import * as modes from "./modes.js";
import * as options from "./options.js";
import * as popover from "./popover.js";
import * as presets from "./presets.js";
import * as scoring from "./scoring.js";
import * as thread from "./thread.js";
import * as tree from "./tree.js";
import * as turns from "./turns.js";
import * as api from "./api.js";
import { $, bench, isChat, keepPrompt, model, onChange, setDocument, showPrompt, state } from "./state.js";
import { Drafts } from "./drafts.js";
import { SavedPrompts } from "./saved.js";
import { Sharing, showNotice } from "./sharing.js";
import { chatParameters, createFields, fillForm } from "./parameters.js";
import { dateTime, retryWhileUnreachable, showError } from "./problems.js";
import { edit } from "./editing.js";
import { branchFrom, branchWithText, continueFrom, generate, settings } from "./requests.js";

const runningMessage = "A request is running. Wait for it, or stop it first.";

$("settings").append(...createFields("p"));
$("second-settings").append(...createFields("q"));
$("chat-settings").append(...createFields("c", chatParameters));
columns.start({ continueFrom, edit });
thread.start();
composer.start();
branches.start();
const inMode = (chat, completion) => (...args) => (isChat() ? chat : completion)(...args);
popover.start({ branchFrom: inMode(conversing.branchFrom, branchFrom), branchWithText: inMode(conversing.branchWithText, branchWithText) });
modes.start();
scoring.start();
presets.start();

let sharing = null;
const saved = new SavedPrompts({
  list: $("saved"), search: $("saved-search"), name: $("name"), status: $("saved-status"), usage: $("saved-usage"),
  onOpen: openSaved,
  onDelete: () => history.replaceState(null, "", "/workbench"),
  onChange: (share) => sharing?.show(share),
});
sharing = new Sharing(saved);
exporting.start(() => saved.name.value.trim());

// The draft of what is not saved. A reload, a crash or a lost session does not lose it.
const drafts = new Drafts(bench.dataset.account, () => saved.id ?? state.addressed, () => state.unsaved && {
  prompt: $("prompt").value, message: $("message").value, model: model(), settings: settings(), chat: conversing.settings(),
  name: saved.name.value, version: saved.version, tree: tree.packAsJSON(state.doc),
}, (text) => saved.setStatus(text));
onChange(() => drafts.schedule());

// show shows a document that was saved.
function show(document_) {
  state.doc = tree.unpack(document_.tree);
  if (isChat()) modes.fitModel(turns.thread(state.doc, state.doc.selected).findLast((turn) => turn.made)?.made.model);
  else showPrompt(tree.rootOf(state.doc, state.doc.selected));
  fillForms(document_);
  $("message").value = "";
  state.sideBySide = [];
  setDocument(state.doc);
  state.unsaved = false;
}

// fillForms shows parameters. A document from before conversations has none of theirs.
function fillForms({ settings: values, chat }) {
  if (values) fillForm($("settings"), values);
  if (chat) fillForm($("chat-settings"), chat);
}

async function openSaved(id) {
  if (state.running) { saved.setStatus(runningMessage); return; }
  if (state.unsaved && !confirm("You have unsaved changes. Open the other prompt and discard them?")) return;
  if (state.unsaved) drafts.remove();
  try {
    await showSaved(await saved.load(id));
  } catch (error) {
    showError(error);
  }
}

// showSaved shows a saved prompt that was loaded, with the changes that the user has made to it and not saved.
async function showSaved(prompt) {
  show(prompt.document);
  leaveAddressed();
  await restoreDraft();
  $("open-panel").open = false;
  history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(prompt.id)}`);
}

// openShared shows the prompt of another user's link, with the changes that the user has made to it and not saved.
async function openShared(share) {
  const prompt = await retryWhileUnreachable(() => api.getSharedPrompt(share));
  if (state.addressed !== share) return; // the user has opened another prompt meanwhile
  show(prompt.document);
  saved.name.value = prompt.name;
  await restoreDraft();
  showNotice(prompt);
}

// leaveAddressed is called when another prompt is open than that of the address with which the page was loaded.
function leaveAddressed() {
  state.addressed = null;
  $("shared-notice").hidden = true;
}

// restoreDraft shows the draft of the prompt that is open, if there is one, and reports whether there is.
async function restoreDraft() {
  const draft = await drafts.read();
  if (!draft) return false;
  state.doc = tree.unpack(draft.tree);
  if (!isChat()) showPrompt(tree.rootOf(state.doc, state.doc.selected));
  $("prompt").value = draft.prompt;
  $("message").value = draft.message ?? "";
  fillForms(draft);
  const outdated = saved.id && saved.version !== draft.version;
  Object.assign(saved, { version: draft.version });
  saved.name.value = draft.name;
  modes.fitModel(draft.model);
  setDocument(state.doc);
  $("progress").textContent = `Draft of ${dateTime(draft.time)} restored.${outdated ? " The prompt has been saved since then: open it again to see what was saved." : ""}`;
  return true;
}

async function save() {
  keepPrompt();
  try {
    drafts.remove();
    await saved.save(model(), { tree: tree.pack(state.doc), settings: settings(), chat: conversing.settings() });
    state.unsaved = Boolean($("message").value); // it is no part of the conversation
    drafts.remove();
    leaveAddressed();
    drafts.schedule();
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
  } catch (error) {
    drafts.schedule();
    saved.setStatus(error.code === "conflict" ? "This prompt was changed elsewhere since you opened it, so nothing was saved. Save again to keep your version as another prompt." : error.message);
  }
}

function startOver() {
  if (state.running) { saved.setStatus(runningMessage); return; }
  if (state.unsaved && !confirm("You have unsaved changes. Discard them and start over?")) return;
  drafts.remove();
  saved.close();
  $("prompt").value = "";
  $("message").value = "";
  leaveAddressed();
  const next = tree.newTree();
  setDocument(isChat() ? tree.select(...turns.addConversation(next)) : next);
  state.unsaved = false;
  drafts.remove();
  history.replaceState(null, "", "/workbench");
}

for (const form of [$("settings"), $("second-settings"), $("chat-settings")]) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => drafts.schedule());
}
$("generate").addEventListener("click", () => generate());
$("stop").addEventListener("click", () => state.running?.abort());
const typed = ["prompt", "message"];
for (const id of typed) $(id).addEventListener("input", () => { state.unsaved = true; drafts.schedule(); });
$("prompt").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) generate(); });
$("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
$("new").addEventListener("click", startOver);
addEventListener("beforeunload", (event) => { if (state.unsaved && ($("prompt").value || isChat()) && !drafts.flush()) event.preventDefault(); });
addEventListener("pagehide", () => drafts.flush());

await drafts.start();
try {
  await options.start();
  await saved.refresh();
  if (bench.dataset.prompt) await showSaved(await retryWhileUnreachable(() => saved.load(bench.dataset.prompt)));
  else if (bench.dataset.shared) await openShared(bench.dataset.shared);
  else if (!await restoreDraft()) modes.fitMode();
  options.estimateSoon();
} catch (error) {
  try { await restoreDraft(); } catch { /* another version of the workbench has written it */ }
  showError(error);
}
for (const id of typed) $(id).readOnly = false; // text typed before would be replaced, or stored as another prompt's draft
bench.dataset.ready = "";
