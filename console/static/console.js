// The scripts of every page.
import { clock, dateTime, inUTC, zone } from "./times.js";
import { sessionLives, signInAgain, userOfPage } from "./session.js";

// The choice of a theme. Without one the style sheet follows the browser's.
const themes = document.querySelectorAll("[data-theme-choice]");
for (const choice of themes) {
  choice.value = document.documentElement.dataset.theme ?? "";
  choice.hidden = false;
  choice.addEventListener("change", () => {
    const { value } = choice;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    for (const other of themes) other.value = value;
    try { localStorage.setItem("theme", value); } catch { /* storage may be disabled: then the choice applies to this page only */ }
  });
}

// Filters are folded on a phone.
const phone = matchMedia("(max-width: 46rem)");
const fold = () => { for (const filters of document.querySelectorAll("details.fold")) filters.open = !phone.matches; };
phone.addEventListener("change", fold);
fold();

// A button that copies the text of another element.
function setUpCopying() {
  for (const button of document.querySelectorAll("[data-copy][hidden]")) {
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select it and copy by hand";
      }
      setTimeout(() => { button.textContent = label; }, 2000);
    });
  }
}
setUpCopying();
document.addEventListener("live", setUpCopying);

// A form that is submitted when one of its fields changes. Its button is for browsers without scripts.
for (const form of document.querySelectorAll("[data-submit-on-change]")) {
  form.addEventListener("change", () => form.requestSubmit());
}

// What a batch costs is a share of the budget of the key that is chosen.
const estimate = document.getElementById("estimate");
function showEstimate() {
  estimate.textContent = estimate.closest("form").elements.key.selectedOptions[0].dataset.estimate;
}
if (estimate) {
  estimate.closest("form").addEventListener("change", showEstimate);
  showEstimate(); // a browser may have restored another key
}

// Times are shown as times.js says. Those of data-ago are relative while they are fresh, and those of data-clock have no date.
function ago(time) {
  const seconds = (Date.now() - time) / 1000;
  if (seconds < 0 || seconds >= 86_400) return null;
  if (seconds < 60) return "just now";
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : `${Math.floor(seconds / 3600)} h ago`;
}

function showTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const time = new Date(element.dateTime);
    element.title = inUTC(time);
    const text = ("ago" in element.dataset && ago(time)) || ("clock" in element.dataset ? clock(time) : dateTime(time));
    if (element.textContent !== text) element.textContent = text;
  }
  const line = document.getElementById("zone");
  if (line) line.textContent = zone();
}
showTimes();
setInterval(showTimes, 30_000);
document.addEventListener("live", showTimes);

// Signing out removes the drafts of the workbench from the browser. The other tabs then store none until their user signs in again,
// which the next page of any tab tells them.
const session = globalThis.BroadcastChannel && new BroadcastChannel("basegate-session");
const user = document.getElementById("sign-in-template") && userOfPage(); // null on a page without a session
session?.addEventListener("message", ({ data: signedIn }) => {
  if (signedIn === null || signedIn === user) document.dispatchEvent(new CustomEvent(signedIn === null ? "sign-out" : "sign-in", { detail: "elsewhere" }));
});
if (user) session?.postMessage(user);

async function removeDrafts() {
  document.dispatchEvent(new Event("sign-out"));
  session?.postMessage(null);
  const clearing = import("./workbench/draftstore.js").then(({ clear }) => clear());
  await Promise.race([clearing, new Promise((resolve) => { setTimeout(resolve, 3000); })]).catch(() => { /* storage may be disabled */ });
  try {
    for (const key of Object.keys(localStorage)) if (key.startsWith("basegate-draft")) localStorage.removeItem(key); // see workbench/localdrafts.js
  } catch { /* storage may be disabled */ }
}

// A tab that has left the workbench keeps the lock on its drafts there: see workbench/drafts.js.
if (!document.getElementById("bench")) {
  try {
    const lock = sessionStorage.getItem("basegate-workbench-tab");
    if (lock) {
      navigator.locks?.request(lock, { signal: AbortSignal.timeout(30_000) }, () => {
        sessionStorage.removeItem("basegate-workbench-leaving");
        addEventListener("pagehide", () => sessionStorage.setItem("basegate-workbench-leaving", ""));
        return new Promise(() => {});
      }).catch(() => {}); // another tab has it
    }
  } catch { /* storage may be disabled */ }
}

// A form is sent once, and only in a session: if the session has ended, the user signs in over the page, and the form is then
// sent with what was typed.
const checked = new WeakSet();
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post" || !document.getElementById("sign-in-template")) return;
  if (checked.has(form)) {
    if (form.classList.contains("busy")) event.preventDefault();
    form.classList.add("busy");
    return;
  }
  event.preventDefault();
  form.dataset.sending = ""; // keeps it on a page that refreshes itself
  const { submitter } = event;
  await new Promise((resolve) => { setTimeout(resolve); }); // a form cannot be submitted while this event is dispatched
  const { pathname } = new URL(form.action);
  if (pathname !== "/sign-out" && !(await sessionLives()) && !(await signInAgain())) {
    delete form.dataset.sending;
    return;
  }
  if (/^\/(sign-out|account\/sign-out-everywhere)$/.test(pathname)) await removeDrafts();
  checked.add(form);
  form.requestSubmit(submitter);
  setTimeout(() => { checked.delete(form); form.classList.remove("busy"); delete form.dataset.sending; }, 10_000); // if the response never comes
});

// The feedback form opens as a dialog on the current page.
const feedback = document.getElementById("feedback");
for (const link of document.querySelectorAll("[data-feedback]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    feedback.showModal();
  });
}
for (const button of document.querySelectorAll("dialog [data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
