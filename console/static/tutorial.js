// Every snippet gets a button that copies it. Snippets and tables get the focus, so that the keyboard can scroll them.
for (const pre of document.querySelectorAll(".tutorial article pre")) {
  const wrapper = document.createElement("div");
  wrapper.className = "snippet";
  pre.replaceWith(wrapper);
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
  wrapper.append(pre, button);
}
for (const table of document.querySelectorAll(".tutorial article table")) table.tabIndex = 0;
