// The fields under and above a conversation: the next message, and the system message.
import * as turns from "./turns.js";
import { $, isChat, onRender, setDocument, state } from "./state.js";
import { addTurn, answer, extend, ready } from "./conversing.js";
import { sayProgress } from "./running.js";

export function start() {
  onRender(renderSystem);
  $("send").addEventListener("click", send);
  $("add-turn").addEventListener("click", add);
  $("message").addEventListener("keydown", sendByKey);
  $("message-role").addEventListener("change", renderRole);
  $("system").addEventListener("keydown", sendByKey);
  $("system").addEventListener("input", () => { if (turns.isLeaf(state.doc, root().id)) changeSystem(); });
  $("system").addEventListener("change", changeSystem);
  renderRole();
}

// message returns the unsent message as a turn, or null.
const message = () => ($("message").value ? { role: $("message-role").value, text: $("message").value } : null);

// nextMessages returns the messages that Send would send, or null if there is nothing to answer.
export function nextMessages() {
  const next = message();
  const messages = [...turns.messagesOf(state.doc, state.doc.selected), ...(next ? [{ role: next.role, content: next.text }] : [])];
  const last = messages.at(-1)?.role;
  return last === "user" || last === "tool" || next ? messages : null;
}

const root = () => turns.thread(state.doc, state.doc.selected)[0];

function changeSystem() {
  if (!state.running && isChat()) setDocument(turns.withSystem(state.doc, $("system").value));
}

function renderSystem() {
  $("system").readOnly = Boolean(state.running);
  if (!isChat() || document.activeElement === $("system")) return;
  const { text } = root();
  if ($("system").value === text) return;
  $("system").value = text;
  if (text) $("system-panel").open = true;
}

function sendByKey(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $("send").click(); // unless it is disabled
}

// takeMessage adds the message as a turn.
function takeMessage() {
  const turn = message();
  $("message").value = "";
  $("message-role").value = "user";
  renderRole();
  addTurn(turn.role === "assistant" ? { ...turn, tokens: turns.words(turn.text), edited: true } : turn);
}

const sayEmpty = () => sayProgress("Write a message first.");

// add adds the message, and generates nothing.
function add() {
  if (state.running) return;
  if (message()) takeMessage();
  else sayEmpty();
}

// send adds the message and generates the answer. The beginning of an answer that the user wrote is continued. Without a
// message, the last turn is answered.
async function send() {
  if (!ready()) return;
  changeSystem();
  const taken = message();
  if (taken) takeMessage();
  const last = state.doc.nodes[state.doc.selected];
  if (taken && last.role === "assistant") await extend(last.id);
  else if (last.role === "user" || last.role === "tool") await answer(last.id);
  else sayEmpty();
}

function renderRole() {
  const isAnswer = $("message-role").value === "assistant";
  $("message").placeholder = isAnswer ? "The beginning of the answer, which the model continues" : "Ask something";
}
