// Keeps the figures of a page current: gets the page again every data-live-every seconds while it is visible, and replaces the
// elements that have data-live and an id. A hidden page gets nothing; it refreshes as soon as it is shown. A page whose newer
// version has no data-live-every is not refreshed any more.

import { clock } from "./times.js";

const status = document.querySelector("[data-live-every]");
const seconds = Number(status?.dataset.liveEvery);
const received = new Map(); // by id: the HTML that was inserted last
const chosen = new Map(); // by id of a details element: whether the user has opened or closed it
let timer;
let running; // the AbortController of a refresh in progress
let succeeded = new Date();
let ended = false; // a page that asks for no refreshes has been received

const nameOf = (element) => element.getAttribute("aria-label") ?? element.textContent.trim();

// What the pointer is pressed on: a click happens only to an element that is there when the pointer is released, too.
let pressed = null;
document.addEventListener("pointerdown", ({ target }) => { pressed = target; }, true);
for (const type of ["pointerup", "pointercancel"]) document.addEventListener(type, () => setTimeout(() => { pressed = null; }), true);

// replace shows an element of a newer page, and keeps the focus on the link or button of the same name. While the user types in the
// element, clicks in it or sends a form of it, replace leaves it as it is and returns false.
function replace(old, next) {
  const html = next.innerHTML;
  const focused = old !== document.activeElement && old.contains(document.activeElement) ? document.activeElement : null;
  if (received.get(old.id) === html) return true;
  if (old.querySelector("form[data-sending]") || focused?.matches("input, select, textarea") || old.contains(pressed)) return false;
  received.set(old.id, html);
  const atEnd = old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  for (const details of next.querySelectorAll("details[id]")) { // what has opened itself stays open until the user closes it
    details.open = chosen.get(details.id) ?? (details.open || Boolean(document.getElementById(details.id)?.open));
  }
  old.replaceChildren(...document.adoptNode(next).childNodes);
  if (focused) {
    const again = [...old.querySelectorAll(focused.localName)].find((element) => nameOf(element) === nameOf(focused));
    again?.focus({ preventScroll: true });
  }
  if (atEnd) old.scrollTop = old.scrollHeight;
  for (const log of old.querySelectorAll("[data-tail]")) log.scrollTop = log.scrollHeight;
  return true;
}

async function refresh() {
  clearTimeout(timer);
  const own = running = new AbortController();
  try {
    const response = await fetch(location.href, { signal: own.signal, headers: { Accept: "text/html", "Basegate-Live": "1" } });
    if (response.redirected) { // the session has ended
      status.textContent = "You are signed out. Reload the page to sign in again.";
      return;
    }
    if (!response.ok) throw new Error(`status ${response.status}`);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    let isCurrent = true;
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = page.getElementById(old.id);
      if (next) isCurrent = replace(old, next) && isCurrent;
    }
    document.dispatchEvent(new CustomEvent("live", { detail: page }));
    succeeded = new Date();
    if (isCurrent && !page.querySelector("[data-live-every]")) {
      ended = true;
      status.textContent = "Finished; live updates stopped.";
      return;
    }
    sayLive();
  } catch {
    if (own.signal.aborted) return; // the page was hidden
    status.textContent = `Not updated since ${clock(succeeded)}: the gateway does not answer. Trying again.`;
  }
  schedule();
}

function sayLive() {
  status.textContent = `Live: refreshed every ${seconds} s while this tab is visible. As of ${clock(succeeded)}.`;
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, 1000 * seconds);
}

if (status) {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    running?.abort();
    if (ended) return;
    if (document.hidden) status.textContent = "Paused while this tab is hidden.";
    else refresh();
  });
  document.addEventListener("click", (event) => {
    const details = event.target.closest?.("summary")?.parentElement;
    if (details?.id) chosen.set(details.id, !details.open); // it changes after this event
  });
  for (const log of document.querySelectorAll("[data-tail]")) log.scrollTop = log.scrollHeight;
  sayLive();
  schedule();
}
