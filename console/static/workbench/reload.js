// Loads the workbench again if one of its scripts could not be loaded: a browser aborts requests when the network of its machine
// changes. Without all of its scripts the page looks whole and does nothing.
{
  const key = "basegate-workbench-reloaded";
  const pause = 60_000; // milliseconds between two attempts
  let handled = false;

  // mayReload reports whether the latest attempt is long enough ago, and records a new one.
  const mayReload = () => {
    try {
      const due = Date.now() - Number(sessionStorage.getItem(key)) > pause;
      if (due) sessionStorage.setItem(key, Date.now());
      return due;
    } catch {
      return false; // storage may be disabled
    }
  };

  addEventListener("error", (event) => {
    if (!(event.target instanceof HTMLScriptElement) || handled) return;
    handled = true;
    if (mayReload()) {
      location.reload();
      return;
    }
    const notice = Object.assign(document.createElement("p"), { className: "notice bad", textContent: "A part of this page could not be loaded. Check your connection, and reload the page." });
    notice.setAttribute("role", "alert");
    document.getElementById("main").prepend(notice);
  }, true); // such events do not bubble
}
