// Sets the chosen theme before the first paint, so that the page does not flash in the other one.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* storage may be disabled */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
