// A button on every snippet that copies it, and a way for the keyboard into what is wider than the page.
for (const pre of document.querySelectorAll(".tutorial article pre")) {
  const box = document.createElement("div");
  box.className = "snippet";
  pre.replaceWith(box);
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and copy by hand";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  pre.tabIndex = 0;
  box.append(pre, button);
}
for (const table of document.querySelectorAll(".tutorial article table")) table.tabIndex = 0;
