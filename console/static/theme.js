// Runs before the page is painted, so that a chosen theme does not flash.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* storage may be off */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
