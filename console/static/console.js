// What every page has: the choice of light or dark.
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function dark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
}

for (const button of document.querySelectorAll("[data-theme-toggle]")) {
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  label();
  button.hidden = false;
  prefersDark.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds for this page */ }
    label();
  });
}

// A button that copies what another element says.
for (const button of document.querySelectorAll("[data-copy]")) {
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

// A choice that takes effect at once. Without this script its form has a button.
for (const form of document.querySelectorAll("[data-submit-on-change]")) {
  form.addEventListener("change", () => form.requestSubmit());
}

// A page that shows something on its way looks again after so many seconds, unless somebody is writing on it.
for (const part of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => {
    if (!document.hidden && !document.querySelector("dialog[open], details[open]")) location.reload();
  }, 1000 * Number(part.dataset.refresh));
}

// The feedback's page opens as a dialog over the one it is about.
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
