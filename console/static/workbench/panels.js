// The panels of the documents' toolbar, over the prompt: one at a time, until Escape is pressed or a click is outside the toolbar.
const toolbar = document.querySelector(".documents");
const openPanel = () => toolbar.querySelector("details[name][open]");

document.addEventListener("pointerdown", ({ target }) => {
  const panel = openPanel();
  if (panel && !toolbar.contains(target)) panel.open = false;
});
toolbar.addEventListener("keydown", ({ key }) => {
  const panel = openPanel();
  if (key !== "Escape" || !panel) return;
  panel.open = false;
  panel.firstElementChild.focus();
});
