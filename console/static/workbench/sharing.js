// The link by which colleagues open a saved prompt, and the prompt of such a link.
import * as api from "./api.js";
import { $ } from "./state.js";
import { dateTime } from "../times.js";

const linkOf = (share) => new URL(`/workbench?shared=${encodeURIComponent(share)}`, location.href).href;

export class Sharing {
  // saved is the list of saved prompts. It knows which prompt is open.
  constructor(saved) {
    this.saved = saved;
    $("share-create").addEventListener("click", () => this.change(async (id) => [(await api.sharePrompt(id)).share, false]));
    $("share-everyone").addEventListener("change", () => this.change(async (id) => {
      const { checked } = $("share-everyone");
      await api.shareWithEveryone(id, checked);
      return [this.share, checked];
    }));
    $("share-revoke").addEventListener("click", () => this.change(async (id) => {
      await api.unsharePrompt(id);
      return ["", false];
    }, "The link does not work any more."));
    $("share-copy").addEventListener("click", async () => {
      $("share-link").select();
      await navigator.clipboard?.writeText($("share-link").value).then(() => { $("share-status").textContent = "Copied."; }, () => { $("share-status").textContent = "Copy the selected link by hand."; });
    });
    this.show("");
  }

  // change runs a change of the open prompt's link, which returns the new link and whether everyone finds it, and shows it or its error.
  async change(task, done = "") {
    const { current } = this.saved;
    $("share-status").textContent = "";
    try {
      const changed = await task(current.id);
      if (current === this.saved.current) { // else the user has opened another prompt meanwhile
        this.show(...changed);
        $("share-status").textContent = done;
      }
    } catch (error) {
      if (current === this.saved.current) {
        this.show(this.share, this.everyone);
        $("share-status").textContent = error.message;
      }
    }
    this.saved.refresh();
  }

  // show shows the link of the prompt that is open; share is empty if it has none. everyone says whether all users find it.
  show(share, everyone = false) {
    Object.assign(this, { share, everyone });
    $("share-everyone").checked = everyone;
    const isSaved = Boolean(this.saved.id);
    $("share-status").textContent = isSaved ? "" : "Save the prompt first: the link opens what is saved.";
    $("share-create").hidden = Boolean(share);
    $("share-create").disabled = !isSaved;
    $("shared-link").hidden = !share;
    $("share-link").value = share ? linkOf(share) : "";
  }
}

// showNotice says whose prompt the page shows.
export function showNotice({ owner, name, updated }) {
  $("shared-notice").textContent = `“${name}” is shared by ${owner}, as saved on ${dateTime(updated)}. What you change here stays yours: Save keeps it as a prompt of your own.`;
  $("shared-notice").hidden = false;
}
