// The pace of a stream: the time to its first token, and tokens a second.
export class Pace {
  // show is called with a text about twice a second, and at the end.
  constructor(show, now = () => performance.now()) {
    Object.assign(this, { show, now, usage: null, tokens: 0, begin: 0, first: 0, last: 0, shown: 0 });
  }

  start() { this.begin = this.now(); }

  // count counts tokens that have arrived.
  count(tokens) {
    if (!tokens) return;
    this.last = this.now();
    if (!this.tokens) this.first = this.last;
    this.tokens += tokens;
    if (this.last - this.shown < 500) return;
    this.shown = this.last;
    this.show(`Generating… ${this.tokens.toLocaleString("en")} ${this.tokens === 1 ? "token" : "tokens"}${this.details()}`);
  }

  // end shows what the request has used.
  end() {
    if (!this.usage) return;
    const { prompt_tokens: prompt, completion_tokens: completion } = this.usage;
    this.show(`${prompt.toLocaleString("en")} prompt + ${completion.toLocaleString("en")} completion tokens${this.details()}`);
  }

  details() {
    if (!this.tokens) return "";
    const seconds = (this.last - this.first) / 1000;
    const rate = seconds > 0.05 ? ` · ${Math.round((this.tokens - 1) / seconds).toLocaleString("en")} tokens/s` : "";
    return ` · first token after ${((this.first - this.begin) / 1000).toFixed(2)} s${rate}`;
  }
}
