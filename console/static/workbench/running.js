// What sends requests: completions run beside each other, and any other task runs alone among its kind. Each has a line with its
// progress and Stop. What the key's slots do not take waits in order.
import { $, bench, element, button, render, state } from "./state.js";
import { renderRun } from "./allowing.js";
import { showError } from "./problems.js";
import { startFollowing } from "./columns.js";

const mostStreams = 4; // a browser has six connections to an origin over HTTP/1.1
const generating = "Generating…";
let sayAlone = null; // shows the progress of the task that runs alone

const ended = () => [...$("progress").children].filter((line) => !line.querySelector("button"));

// sayProgress shows the progress of the task that runs alone, or another text instead of those that have ended.
export function sayProgress(text) {
  if (sayAlone) { sayAlone(text); return; }
  for (const line of ended()) line.remove();
  if (text) $("progress").prepend(element("div", { textContent: text }));
}

// slotsOf returns how many completions run at once with a key.
const slotsOf = (id) => Math.min(mostStreams, state.options.keys.find((key) => key.id === id)?.concurrency || mostStreams);

// admit begins the runs for which there are slots, in the order in which they were started.
function admit() {
  const active = () => state.runs.filter((run) => run.isActive).length;
  let before = 0;
  for (const run of state.runs) {
    if (run.isActive) continue;
    const slots = slotsOf(run.key);
    if (state.runs.filter((other) => other.isActive && other.key === run.key).length < slots && active() < mostStreams) {
      run.isActive = true;
      run.begin();
    } else run.say(`Waits for ${++before === 1 ? "a run" : `${before} runs`} to end: ${slots} run at once with this key.`);
  }
}

// runBeside runs a task for a key beside others when there is a slot for it. nodes are the ids of those that grow: the task replaces
// them in the run that it gets with the signal and the function that shows its progress. It reports whether it succeeded.
export async function runBeside({ label, nodes }, task) {
  const run = { key: $("key").value, nodes: new Set(nodes), isActive: false };
  return runInLine(label, async (signal, say) => {
    run.say = say;
    state.runs.push(run);
    renderRun();
    try {
      await new Promise((resolve, reject) => {
        run.begin = resolve;
        signal.addEventListener("abort", () => reject(Object.assign(signal.reason, { said: run.isActive ? undefined : "Stopped before it began." })), { once: true });
        admit();
      });
      say(generating);
      await task(signal, say, run);
    } finally {
      state.runs.splice(state.runs.indexOf(run), 1);
      admit();
    }
  });
}

// runExclusively runs a task unless such a one is running, and reports whether it succeeded.
export async function runExclusively(task) {
  if (state.running) return false;
  return runInLine("", async (signal, say) => {
    state.running = signal;
    sayAlone = say;
    renderRun();
    say(generating);
    try {
      await task(signal, say);
    } finally {
      state.running = null;
      sayAlone = null;
    }
  });
}

// runInLine runs a task, with a line for its progress and Stop, and shows its error.
async function runInLine(label, task) {
  const controller = new AbortController();
  const text = element("span");
  const stop = button("Stop", () => controller.abort());
  const line = element("div", { className: "run" }, text, stop);
  const say = (said) => { text.textContent = said && label ? `${label}: ${said}` : said; };
  for (const old of ended()) if (!state.runs.length) old.remove();
  $("progress").append(line);
  showError(null);
  startFollowing();
  try {
    await task(controller.signal, say);
    if (text.textContent.endsWith(generating)) say("");
    return true;
  } catch (error) {
    say(error.name === "AbortError" ? error.said ?? "Stopped. The text so far is kept, and is charged." : label && "Failed.");
    if (error.name !== "AbortError") showError(error);
    return false;
  } finally {
    stop.remove();
    if (!text.textContent) line.remove();
    renderRun();
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
