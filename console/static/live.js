// Refreshes the parts of a page that change: the elements with data-live, as often as one of them asks for by
// data-live-seconds. A hidden tab refreshes nothing.
import { showTimes } from "./console.js";

const note = document.getElementById("live-note");
const shown = new Map(); // the HTML of each part as it was received, before its times were localized
let timer;
let running; // the AbortController of a refresh in progress

function interval() {
  return 1000 * Number(document.querySelector("[data-live-seconds]")?.dataset.liveSeconds ?? 0);
}

function say(text) {
  if (note) note.textContent = text;
}

/** replaceParts takes over what has changed, except where the user is. */
function replaceParts(page) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = page.getElementById(old.id);
    if (!next || old.contains(document.activeElement) || old.querySelector("details[open]")) continue;
    if (next.dataset.liveSeconds) old.dataset.liveSeconds = next.dataset.liveSeconds;
    else delete old.dataset.liveSeconds;
    const html = next.innerHTML;
    if (shown.get(old.id) === html) continue;
    shown.set(old.id, html);
    old.replaceChildren(...document.adoptNode(next).childNodes);
  }
  showTimes();
}

async function refresh() {
  running = new AbortController();
  try {
    const response = await fetch(location.href, { signal: running.signal, headers: { Accept: "text/html" } });
    if (response.redirected) {
      say("You are signed out. Reload the page to sign in again.");
      return;
    }
    if (!response.ok) throw new Error(`status ${response.status}`);
    replaceParts(new DOMParser().parseFromString(await response.text(), "text/html"));
    say(interval()
      ? `Updated every ${interval() / 1000} seconds while this tab is visible. As of ${new Date().toLocaleTimeString()}.`
      : "Nothing is running, so the page no longer refreshes.");
  } catch {
    if (running.signal.aborted) return; // the tab was hidden
    say(`Not updated since ${new Date().toLocaleTimeString()}: the gateway does not answer. Trying again.`);
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if (interval() && !document.hidden) timer = setTimeout(refresh, interval());
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!interval()) return;
  if (document.hidden) {
    running?.abort();
    say("Paused while this tab is hidden.");
  } else {
    refresh();
  }
});

if (interval()) say(`Updated every ${interval() / 1000} seconds while this tab is visible.`);
schedule();
