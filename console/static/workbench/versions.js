// The versions of the prompt that is open: each save makes one. An earlier one can be opened, and a save makes it the latest.
import * as api from "./api.js";
import { dateTime } from "../times.js";
import { $, button, element } from "./state.js";

export class Versions {
  // saved knows which prompt is open. replace(question, load, showLoaded) and show(document, model) show another document.
  constructor(saved, replace, show) {
    Object.assign(this, { saved, replace, show });
    $("versions-panel").addEventListener("toggle", () => this.refresh());
  }

  // refresh lists the versions while their panel is open.
  async refresh() {
    if (!$("versions-panel").open) return;
    const { id } = this.saved;
    const asked = this.asked = {}; // the answer to an earlier call may come later
    try {
      const { versions } = id ? await api.getVersions(id) : { versions: [] };
      if (asked === this.asked) this.render(versions);
    } catch (error) {
      if (asked === this.asked) this.setStatus(error.message);
    }
  }

  render(versions) {
    const [latest] = versions;
    const shown = this.saved.current.shown || latest?.version;
    $("versions").replaceChildren(...versions.map((v) => {
      const name = `Version ${v.version}`;
      const openButton = button(name, () => (v === latest ? this.saved.onOpen(v.id) : this.open(v)), { className: "quiet", title: v.name });
      if (v.version === shown) openButton.setAttribute("aria-current", "true");
      const row = element("li", {}, openButton, element("small", { textContent: `${v === latest ? "latest · " : ""}${v.model} · ${dateTime(v.updated)}` }));
      if (v !== latest) row.append(button("Delete", () => this.delete(v), { className: "quiet", "aria-label": `Delete ${name.toLowerCase()}` }));
      return row;
    }));
    this.setStatus(latest ? "" : "Save the prompt first.");
    $("origin").replaceChildren(...(latest?.origin ? ["A copy of ", originLink(latest.origin)] : []));
  }

  open({ id, version }) {
    return this.replace(`Open version ${version} and discard them?`, () => this.saved.load(id, version), (prompt) => {
      this.saved.showVersion(prompt);
      this.show(prompt.document, prompt.model);
      this.refresh();
    });
  }

  async delete({ id, version }) {
    if (!confirm(`Delete version ${version}? This cannot be undone.`)) return;
    try {
      await api.deleteVersion(id, version);
    } catch (error) {
      this.saved.setStatus(error.message);
    }
    this.refresh();
  }

  setStatus(textContent) { $("versions-status").textContent = textContent; }
}

// originLink returns a link to the prompt that another one is a copy of, if it is still there and shared.
const originLink = ({ id, name, owner }) => element("a", {
  href: `/workbench?${owner ? "shared" : "prompt"}=${encodeURIComponent(id)}`, textContent: `“${name}”${owner ? ` of ${owner}` : ""}`,
});
