// The scripts of every page. First, the choice of a light or dark theme.
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
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage may be disabled: then the choice applies to this page only */ }
    label();
  });
}

// A button that copies the text of another element.
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

// A form that is submitted when one of its fields changes. Its button is for browsers without scripts.
for (const form of document.querySelectorAll("[data-submit-on-change]")) {
  form.addEventListener("change", () => form.requestSubmit());
}

// A page that shows progress is reloaded every data-refresh seconds, unless a dialog or details are open on it.
for (const element of document.querySelectorAll("[data-refresh]")) {
  setInterval(() => {
    if (!document.hidden && !document.querySelector("dialog[open], details[open]")) location.reload();
  }, 1000 * Number(element.dataset.refresh));
}

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
