// Signing in again over a page whose session has ended, so that nothing typed on the page is lost.
const path = "/console/api/session";

// sessionLives reports whether the user of the page is signed in. If that cannot be found out, it returns true: then the
// request that follows fails by itself.
export async function sessionLives() {
  try {
    const response = await fetch(path);
    if (response.status === 401) return false;
    return !response.ok || (await response.json()).email === userOfPage();
  } catch {
    return true;
  }
}

const template = () => document.getElementById("sign-in-template");
export const userOfPage = () => template().content.querySelector("input[name=email]").value;

// signInAgain asks for the password of the page's user. It resolves to false if the user cancels.
let asking = null;
export function signInAgain() {
  asking ??= ask().finally(() => { asking = null; });
  return asking;
}

function ask() {
  const dialog = template().content.firstElementChild.cloneNode(true);
  document.body.append(dialog);
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  const form = dialog.querySelector("form");
  const problem = dialog.querySelector("[role=alert]");
  const password = form.elements.password;
  dialog.showModal();
  password.focus();
  return new Promise((resolve) => {
    const done = new AbortController();
    const finish = (signedIn) => { done.abort(); dialog.remove(); resolve(signedIn); };
    dialog.addEventListener("close", () => finish(false), { signal: done.signal });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const error = await signIn(form.elements.email.value, password.value);
      if (done.signal.aborted) return;
      if (!error) {
        document.dispatchEvent(new Event("sign-in"));
        finish(true);
        return;
      }
      const p = document.createElement("p");
      p.className = "notice bad";
      p.textContent = error;
      problem.replaceChildren(p);
      password.select();
    }, { signal: done.signal });
  });
}

// signIn returns why signing in has failed, or an empty string.
async function signIn(email, password) {
  try {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ email, password }) });
    if (response.ok) return "";
    return (await response.json()).error?.message ?? "The gateway is not responding. Try again in a moment.";
  } catch {
    return "The gateway cannot be reached. Try again in a moment.";
  }
}
