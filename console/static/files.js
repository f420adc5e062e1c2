// Uploads a file that is chosen or dropped, with its progress, and shows the lines that are wrong. Without this script the
// form does the same without the progress.
import { sessionLives, signInAgain } from "./session.js";

const form = document.getElementById("upload");
const progress = document.getElementById("upload-progress");
const text = document.getElementById("upload-text");
const stop = document.getElementById("upload-stop");
const result = document.getElementById("upload-result");
let request; // the XMLHttpRequest of an upload in progress

function element(name, content, attributes = {}) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...[content].flat());
  return e;
}

function formatBytes(n) {
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (n >= size) return `${+(n / size).toFixed(1)} ${unit}`;
  }
  return `${n} bytes`;
}

function showProblem(message) {
  result.replaceChildren(element("p", message, { class: "notice bad", role: "alert" }));
}

/** showLines shows the lines that are wrong: at most 100, which is where the check ends. */
function showLines(lines) {
  const title = element("strong", lines.length >= 100 ? `The first ${lines.length} wrong lines` : lines.length === 1 ? "1 wrong line" : `${lines.length} wrong lines`,
    { id: "wrong-title", tabindex: "-1" });
  const notice = element("div", [element("p", title), element("p", "Nothing was stored. Correct the file and upload it again.")], { class: "notice bad", role: "alert" });
  const rows = lines.map((l) => element("tr", [
    element("th", l.line ? String(l.line) : "all", { scope: "row", class: "n" }),
    element("td", element("code", l.code), { "data-name": "Code" }),
    element("td", l.field ? element("code", l.field) : "–", { "data-name": "Field" }),
    element("td", l.text, { class: "wrap" }),
  ]));
  const head = element("thead", element("tr", [
    element("th", "Line", { class: "n" }), element("th", "Code"), element("th", "Field"), element("th", "What is wrong"),
  ]));
  result.replaceChildren(notice, element("table", [head, element("tbody", rows)], { class: "cards dense lines" }));
  title.focus();
}

/** finish shows the result of an upload. */
function finish(status, answer) {
  if (status === 201) {
    location.assign(answer.page);
    return;
  }
  if (answer?.lines) showLines(answer.lines);
  else showProblem(answer?.error?.message ?? "The upload broke off. Nothing was stored. Try again.");
}

function setBusy(busy) {
  for (const field of form.elements) if (field !== stop) field.disabled = busy;
  progress.hidden = stop.hidden = !busy;
}

/** send uploads a file. It resolves to the status and the answer; the status is 0 if there is none. */
function send(file) {
  const data = new FormData(); // the file comes last: the gateway checks it as it arrives
  for (const name of ["key", "endpoint"]) if (form.elements[name]) data.append(name, form.elements[name].value);
  data.append("file", file);
  const bar = progress.querySelector("progress");
  const began = performance.now();
  return new Promise((resolve) => {
    request = new XMLHttpRequest();
    request.responseType = "json";
    request.upload.addEventListener("progress", ({ loaded, total }) => {
      const seconds = (performance.now() - began) / 1000;
      bar.value = (100 * loaded) / total;
      text.textContent = loaded < total
        ? `${Math.floor((100 * loaded) / total)} % · ${formatBytes(loaded)} of ${formatBytes(total)} · ${formatBytes(Math.round(loaded / Math.max(seconds, 0.1)))}/s`
        : "Checking the last lines…";
    });
    request.addEventListener("loadend", () => resolve([request.status, request.response]));
    request.open("POST", "/console/api/files");
    request.send(data);
  });
}

async function upload(file) {
  if (request) return;
  result.replaceChildren();
  if (file.size > Number(form.dataset.maxBytes)) {
    showProblem(`The file is larger than ${form.dataset.maxText}. Split it.`);
    return;
  }
  if (!(await sessionLives()) && !(await signInAgain())) return;
  progress.querySelector("progress").value = 0;
  text.textContent = "Uploading…";
  const sent = send(file);
  setBusy(true);
  const [status, answer] = await sent;
  const stopped = request.stopped;
  request = undefined;
  setBusy(false);
  if (stopped) showProblem("Stopped. Nothing was stored.");
  else finish(status, answer);
}

/** dropped returns the file that a drop contains, or nothing. */
function dropped(event) {
  const files = event.dataTransfer?.files ?? [];
  if (files.length > 1) showProblem("Drop one file at a time.");
  return files.length === 1 ? files[0] : undefined;
}

if (form) {
  document.getElementById("drop-hint").hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    upload(form.elements.file.files[0]);
  });
  stop.addEventListener("click", () => {
    request.stopped = true;
    request.abort();
  });
  window.addEventListener("beforeunload", (event) => { if (request) event.preventDefault(); });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const file = dropped(event);
    if (file) upload(file);
  });
}
