// Reads a text that streams in to users of screen readers, sentence by sentence: a token at a time could not be followed.
export class Announcer {
  // region is an element that is a live region.
  constructor(region) {
    Object.assign(this, { region, waiting: "" });
  }

  begin() {
    this.waiting = "";
    this.region.replaceChildren();
  }

  // add adds a part of the text, and announces the sentences that are complete.
  add(text) {
    this.waiting += text;
    const last = [...this.waiting.matchAll(/[.!?…:;]["”’)\]]*\s|[。！？]|\n/g)].at(-1);
    if (!last) return;
    const end = last.index + last[0].length;
    this.announce(this.waiting.slice(0, end));
    this.waiting = this.waiting.slice(end);
  }

  // end announces the rest.
  end() {
    this.announce(this.waiting);
    this.waiting = "";
  }

  announce(text) {
    if (!text.trim()) return;
    const line = document.createElement("p");
    line.textContent = text.trim();
    this.region.append(line);
  }
}
