// Errors as the page shows them: what happened, what to do, and which field it is about.
import { $, isChat } from "./state.js";
import { dateTime } from "../times.js";
import { forms } from "./comparing.js";
import { firstProblem, markInvalid } from "./parameters.js";

const number = (n) => (n ?? 0).toLocaleString("en");

// ownWords have the console's own sentence by error code, where the API's is for programs. advice follows it.
const ownWords = {
  upstream_unreachable: "The model’s servers do not respond.",
  upstream_server_error: "The model’s server has failed.",
  vllm_engine_dead: "The model’s server has stopped.",
  vllm_oom: "The model’s server has run out of memory.",
  stream_ended: "The answer ended early.",
  overloaded: "The gateway is busy.",
  circuit_open: "The model’s servers have failed repeatedly, and are left alone for a moment.",
  unauthorized: "Your session has ended.",
};

// advice has what to do, by error code.
const advice = {
  budget_exceeded: (e) => `${{ key: "Key", parent: "Parent key", account: "Account" }[e.scope]}’s ${{ life: "lifetime", month: "monthly", day: "daily" }[e.window]} budget: ${e.used?.toLocaleString("en")} of ${e.limit?.toLocaleString("en")} tokens used, ${number(e.reserved)} reserved by running requests.${e.resets_at ? ` Resets ${dateTime(e.resets_at)}.` : ""}`,
  invalid_api_key: () => "The key may be paused or revoked. Choose another key, or create one on the dashboard.",
  context_length_exceeded: () => (isChat() ? "Remove turns, or lower max_completion_tokens." : "Shorten the prompt, or lower max_tokens."),
  unauthorized: () => "Sign in again to continue; what you have typed is kept.",
  connection_lost: () => "Check your connection and try again.",
  stream_ended: (e, error) => tryAgain(error),
  overloaded: (e, error) => tryAgain(error),
  circuit_open: (e, error) => tryAgain(error),
  upstream_unreachable: (e, error) => tryAgain(error),
  upstream_server_error: (e, error) => tryAgain(error),
  vllm_engine_dead: (e, error) => tryAgain(error),
  vllm_oom: () => "Shorten the prompt, or lower max_tokens or n.",
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
  for (const form of [$("settings"), ...forms(), $("chat-settings")]) markInvalid(form, null);
  if (!error) { box.replaceChildren(); return; }
  const p = document.createElement("p");
  p.textContent = ownWords[error.code] ?? sentence(error.message, error.param);
  let more = advice[error.code]?.(error.details, error);
  if (!more && (error.status === 429 || error.status === 503)) more = tryAgain(error);
  if (more && !/try again/i.test(p.textContent)) p.append(" ", more);
  if (error.partial) p.append(" The text generated so far is kept. To go on from its end, press “Continue” above it.");
  const notice = document.createElement("div");
  notice.className = "notice bad";
  notice.append(p, ...(error.code || error.details?.request_id ? [detailsOf(error)] : []));
  box.replaceChildren(notice);
  if (error.param) markInvalid(error.form ?? $(isChat() ? "chat-settings" : "settings"), error.param);
}

// detailsOf returns what the API has said, for those who need it.
function detailsOf({ status, code, message, param, details }) {
  const el = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Details";
  const raw = document.createElement("code");
  raw.textContent = [status || "no answer", code, param, details?.request_id, message].filter(Boolean).join(" · ");
  el.append(summary, raw);
  return el;
}

// isValid reports whether the fields of a form can be sent. If not, it shows what is wrong with the first one.
export function isValid(form) {
  const problem = firstProblem(form);
  if (!problem) return true;
  showError(Object.assign(new Error(`${problem.name}: ${problem.message}`), { param: problem.name, form }));
  form.elements[problem.name].focus();
  return false;
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
