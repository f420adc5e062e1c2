// Errors as the page shows them: what happened, what to do, and which field it is about.
import { $, isChat } from "./state.js";
import { dateTime } from "../times.js";
import { markInvalid } from "./parameters.js";

const number = (n) => (n ?? 0).toLocaleString("en");

// advice has additional texts by error code.
const advice = {
  budget_exceeded: (e) => `${e.scope === "key" ? "Key" : "Account"}’s ${e.window === "day" ? "daily" : "monthly"} budget: ${e.used?.toLocaleString("en")} of ${e.limit?.toLocaleString("en")} tokens used, ${number(e.reserved)} reserved by running requests.${e.resets_at ? ` Resets ${dateTime(e.resets_at)}.` : ""}`,
  invalid_api_key: () => "The key may be paused or revoked. Choose another key, or create one on the dashboard.",
  context_length_exceeded: () => (isChat() ? "Remove turns, or lower max_completion_tokens." : "Shorten the prompt, or lower max_tokens."),
  unauthorized: () => "Sign in again to continue; what you have typed is kept.",
  connection_lost: () => "Check your connection and try again.",
  stream_ended: (e, error) => tryAgain(error),
  overloaded: (e, error) => tryAgain(error),
  circuit_open: (e, error) => tryAgain(error),
  upstream_unreachable: (e, error) => `The model’s servers do not respond. ${tryAgain(error)}`,
  upstream_server_error: (e, error) => tryAgain(error),
  vllm_engine_dead: (e, error) => `The model’s server has stopped. ${tryAgain(error)}`,
  vllm_oom: () => "The model’s server has run out of memory. Shorten the prompt, or lower max_tokens or n.",
};

const tryAgain = (error) => `Try again in ${error.retryAfter ? seconds(error.retryAfter) : "a few seconds"}.`;
const seconds = (n) => `${number(n)} ${n === 1 ? "second" : "seconds"}`;

// saysWhen matches a message that says itself when to try again.
const saysWhen = /; (the next try is|try again) in \d+ seconds?\.?$/i;

// sentence returns a message as a sentence, without what the advice repeats. A field or a model at its beginning keeps its case.
function sentence(message, param) {
  const text = message.replace(saysWhen, "").trim();
  const [word] = text.match(/^[a-z]+(?=[.,;!?…]?(\s|$))/) ?? [];
  const begun = word && word !== param ? text[0].toUpperCase() + text.slice(1) : text;
  return begun + (!begun || /[.!?…:”"]$/.test(begun) ? "" : ".");
}

// showError shows an error and marks the field that it is about. null removes the last error.
export function showError(error) {
  const box = $("error");
  for (const form of [$("settings"), $("second-settings"), $("chat-settings")]) markInvalid(form, null);
  if (!error) { box.replaceChildren(); return; }
  const p = document.createElement("p");
  p.className = "notice bad";
  p.textContent = sentence(error.message, error.param);
  let more = advice[error.code]?.(error.details, error);
  if (!more && (error.status === 429 || error.status === 503)) more = tryAgain(error);
  if (more && !/try again/i.test(p.textContent)) p.append(" ", more);
  if (error.partial) p.append(" The text generated so far is kept. To go on from its end, press “Continue” above it.");
  if (error.details?.request_id) {
    const small = document.createElement("small");
    small.textContent = ` ${error.code} · ${error.details.request_id}`;
    p.append(small);
  }
  box.replaceChildren(p);
  if (error.param) markInvalid(error.form ?? $(isChat() ? "chat-settings" : "settings"), error.param);
}

// retryWhileUnreachable runs a task, and runs it again while the gateway cannot be reached, as during a restart. Meanwhile the page
// shows the error.
export async function retryWhileUnreachable(task) {
  for (let pause = 500; ; pause = Math.min(2 * pause, 8000)) {
    try {
      return await task();
    } catch (error) {
      if (![0, 502, 503, 504].includes(error.status)) throw error;
      showError(error);
      await new Promise((resolve) => { setTimeout(resolve, pause); });
      showError(null);
    }
  }
}
