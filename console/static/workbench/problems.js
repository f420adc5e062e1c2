// Errors as the page shows them: what happened, what to do, and which field it is about.
import { $, isChat } from "./state.js";
import { dateTime } from "../times.js";
import { forms } from "./comparing.js";
import { firstProblem, markInvalid } from "./parameters.js";

const number = (n) => (n ?? 0).toLocaleString("en");

// words has the console's own sentences by error code: error_words.go.
const words = JSON.parse($("error-words").textContent);

// spent says how much of a budget is left, and until when.
const spent = (e) => `${{ key: "Key", parent: "Parent key", account: "Account" }[e.scope]}’s ${{ life: "lifetime", month: "monthly", day: "daily" }[e.window]} budget: ${number(e.used)} of ${number(e.limit)} tokens used, ${number(e.reserved)} reserved by running requests.${e.resets_at ? ` Resets ${dateTime(e.resets_at)}.` : ""}`;

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
  const own = words[error.code];
  const isQuoted = !own || own.quote;
  p.textContent = isQuoted ? sentence(error.message, error.param) : own.text;
  if (error.details?.window && error.code === "budget_exceeded") p.append(" ", spent(error.details));
  const more = own?.retry || (!own && [429, 503].includes(error.status)) ? tryAgain(error) : !isQuoted && own.action;
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
