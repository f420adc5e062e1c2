// The document that is open: it is opened, saved, and kept as a draft until it is saved.
import * as api from "./api.js";
import * as canvas from "./canvas.js";
import * as comparing from "./comparing.js";
import * as conversing from "./conversing.js";
import * as exporting from "./exporting.js";
import * as modes from "./modes.js";
import * as options from "./options.js";
import * as tree from "./tree.js";
import * as turns from "./turns.js";
import { $, bench, isChat, isRunning, model, onChange, rootOfSelected, showDocument, showModel, state } from "./state.js";
import { Drafts } from "./drafts.js";
import { ofDocument } from "./files.js";
import { explain, maxBytes, showSize, warn } from "./keeping.js";
import { SavedPrompts } from "./saved.js";
import { Sharing, showNotice } from "./sharing.js";
import { Versions } from "./versions.js";
import { fillForm } from "./parameters.js";
import { dateTime } from "../times.js";
import { retryWhileUnreachable, showError } from "./problems.js";
import { hide as hideDifferences } from "./differences.js";
import { settings } from "./requests.js";
import { sayProgress } from "./running.js";

const saved = new SavedPrompts({
  list: $("saved"), shared: $("shared-prompts"), search: $("saved-search"), name: $("name"), status: $("saved-status"), usage: $("saved-usage"),
  onOpen: (id) => replace("Open the other prompt and discard them?", () => saved.load(id), showSaved),
  onDelete: forgetAddress,
  onChange: (share, everyone) => { sharing.show(share, everyone); versions.refresh(); $("fork").hidden = !saved.id; },
});
const sharing = new Sharing(saved);
const versions = new Versions(saved, replace, show);
const currentDocument = () => ({ tree: tree.pack(state.doc), settings: settings(), chat: conversing.settings() });

// The draft of what is not saved. A reload, a crash or a lost session does not lose it.
const drafts = new Drafts(bench.dataset.account, () => saved.id ?? state.addressed, () => state.unsaved && {
  message: $("message").value, model: model(), settings: settings(), chat: conversing.settings(),
  name: saved.name.value, version: saved.current.version, doc: state.doc,
}, warn);

function edited() {
  state.unsaved = true;
  drafts.schedule();
  queueMicrotask(() => { if (state.unsaved) saved.edited(); }); // showing a document, or another mode, is no edit
}
// show shows a document that was saved, with the model that was chosen then.
function show(document_, requested) {
  hideDifferences();
  state.doc = tree.unpack(document_.tree);
  showModel(rootOfSelected().model);
  modes.fitModel(requested, turns.thread(state.doc, state.doc.selected).findLast((turn) => turn.made)?.made.model);
  fillForms(document_);
  $("message").value = "";
  state.sideBySide = [];
  showDocument(state.doc);
  state.unsaved = false;
  showSize();
}

// fillForms shows parameters. A document from before conversations has none of theirs.
function fillForms({ settings: values, chat }) {
  if (values) fillForm($("settings"), values);
  comparing.follow();
  if (chat) fillForm($("chat-settings"), chat);
}

// mayReplace reports whether another document may be shown. It does not ask again at the revision that the user has answered for.
function mayReplace(question, answered) {
  if (isRunning() || saving) {
    saved.setStatus(saving ? "The prompt is being saved. Try again when it has been saved." : "A request is running. Wait for it, or stop it first.");
    return false;
  }
  return !state.unsaved || drafts.revision === answered || confirm(`You have unsaved changes. ${question}`);
}

// replace shows another document when it has been loaded, if the user still wants it then.
let replacing = null; // of what the user has asked for last
async function replace(question, load, showLoaded) {
  if (!mayReplace(question)) return;
  $("open-panel").open = false;
  const { revision } = drafts;
  const token = replacing = {};
  try {
    const loaded = await load();
    if (token !== replacing || !mayReplace(question, revision)) return;
    if (state.unsaved) drafts.remove();
    state.unsaved = false;
    await showLoaded(loaded);
  } catch (error) {
    showError(error);
  }
}

function openFile(file) {
  return replace("Open the file and discard them?", async () => {
    const opened = ofDocument(await file.text());
    tree.unpack(opened.document.tree); // if this throws, what is open stays
    return opened;
  }, showFile);
}

// showFile shows the document of a file. It is another prompt until it is saved.
function showFile({ name, model: requested, document: document_ }) {
  saved.close();
  leaveAddressed();
  show(document_, requested);
  saved.name.value = name ?? "";
  history.replaceState(null, "", "/workbench");
  edited();
}

// showSaved shows a saved prompt, then its unsaved changes. What was shown before is gone at once: it is never saved as this prompt.
async function showSaved(prompt) {
  saved.open(prompt);
  leaveAddressed();
  show(prompt.document, prompt.model);
  history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(prompt.id)}`);
  await restoreDraft();
}

// openAddressed shows the saved prompt of the page's address.
async function openAddressed(id) {
  const prompt = await retryWhileUnreachable(() => saved.load(id));
  if (state.addressed === id) await showSaved(prompt); // else the user has opened another prompt meanwhile
}

// openShared shows the prompt of another user's link, with the changes that the user has made to it and not saved.
async function openShared(share) {
  const prompt = await retryWhileUnreachable(() => api.getSharedPrompt(share));
  const restored = await restoreDraft();
  if (state.addressed !== share) return; // the user has opened another prompt meanwhile
  saved.current.from = share;
  if (!restored) {
    show(prompt.document, prompt.model);
    saved.name.value = prompt.name;
  }
  showNotice(prompt);
}

// leaveAddressed is called when another prompt is open than that of the address with which the page was loaded.
function leaveAddressed() {
  state.addressed = null;
  $("shared-notice").hidden = true;
}

// forgetAddress removes a prompt that was deleted from the page's address. What is shown of it stays, as the draft of a new prompt.
function forgetAddress(id) {
  if (new URLSearchParams(location.search).get("prompt") !== id) return;
  leaveAddressed();
  history.replaceState(null, "", "/workbench");
  drafts.schedule();
}

// restoreDraft shows the draft of the prompt that is open, if there is one, and reports whether there is.
async function restoreDraft() {
  const draft = await drafts.read();
  if (!draft) return false;
  const typed = state.unsaved && !("ready" in bench.dataset) && !turns.isChat(draft.doc) ? canvas.text() : ""; // while the page was loaded
  if ((state.unsaved && !typed) || isRunning()) { // the user has gone on meanwhile: the draft stays beside what comes next
    drafts.forget();
    return false;
  }
  hideDifferences();
  Object.assign(state, { doc: draft.doc, sideBySide: [] });
  showModel(rootOfSelected().model);
  $("message").value = draft.message ?? "";
  fillForms(draft);
  const outdated = saved.id && saved.current.version !== draft.version;
  saved.current.version = draft.version;
  saved.name.value = draft.name;
  modes.fitModel(draft.model);
  showDocument(state.doc);
  if (typed) canvas.append(typed);
  sayProgress(`Draft of ${dateTime(draft.time)} restored.${outdated ? " The prompt has been saved since then: Versions has what was saved." : ""}`);
  return true;
}

// save stores the document on the server. The draft goes only when what was saved is what is shown.
let saving = false;
async function save() {
  if (saving) return;
  saving = true;
  const { revision } = drafts;
  saved.setStatus("Saving…");
  try {
    if (!await saved.save(model(), currentDocument(), maxBytes)) return;
    versions.refresh();
    leaveAddressed();
    $("export-document").hidden = true;
    history.replaceState(null, "", `/workbench?prompt=${encodeURIComponent(saved.id)}`);
    if (drafts.revision !== revision) edited();
    else if ($("message").value) drafts.schedule(); // it is no part of the conversation
    else {
      state.unsaved = false;
      drafts.remove();
    }
  } catch (error) {
    const isKept = await drafts.flush();
    saved.setStatus(explain(error, isKept));
  } finally {
    saving = false;
  }
}

function startOver() {
  if (!mayReplace("Discard them and start over?")) return;
  replacing = null;
  drafts.remove();
  saved.close();
  hideDifferences();
  $("message").value = "";
  leaveAddressed();
  const next = tree.newTree();
  showDocument(isChat() ? tree.select(...turns.addConversation(next)) : next);
  state.unsaved = false;
  drafts.remove();
  showSize();
  history.replaceState(null, "", "/workbench");
}

// editedIfSaved is called when something changes that a saved prompt has beside its text.
const editedIfSaved = () => (saved.id ? edited() : drafts.schedule());

// start opens the document of the page's address, or the draft.
export async function start() {
  onChange(edited);
  exporting.start(() => ({ name: saved.name.value.trim(), model: model(), document: currentDocument() }));
  for (const form of [$("settings"), ...comparing.forms(), $("chat-settings")]) form.addEventListener("input", editedIfSaved);
  for (const id of ["name", "model"]) $(id).addEventListener("change", editedIfSaved);
  $("message").addEventListener("input", edited);
  $("open-file").addEventListener("change", (event) => { if (event.target.files[0]) openFile(event.target.files[0]).finally(() => { event.target.value = ""; }); });
  $("save").addEventListener("submit", (event) => { event.preventDefault(); save(); });
  $("new").addEventListener("click", startOver);
  $("fork").addEventListener("click", () => { if (!saving) { saved.fork(); save(); } });
  addEventListener("beforeunload", (event) => { if (state.unsaved && (rootOfSelected().text || isChat()) && !drafts.keepLast()) event.preventDefault(); });
  addEventListener("pagehide", () => drafts.leave());
  await drafts.start();
  try {
    await options.start();
    await saved.refresh();
    if (bench.dataset.prompt) await openAddressed(bench.dataset.prompt);
    else if (bench.dataset.shared) await openShared(bench.dataset.shared);
    else if (!await restoreDraft()) modes.fitMode();
    options.estimateSoon();
  } catch (error) {
    try { await restoreDraft(); } catch { /* another version of the workbench has written it */ }
    showError(error);
  }
}
