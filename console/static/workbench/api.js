// What the page asks of the gateway. Whatever fails is a Refusal with the API's own code and words.
const home = "/console/api";

export class Refusal extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `The gateway answered ${status}.`);
    Object.assign(this, { status, code: error?.code ?? "", param: error?.param ?? null, details: error ?? {}, retryAfter });
  }
}

async function refusal(response) {
  let error = null;
  try { error = (await response.json()).error; } catch { /* it was not the gateway that answered */ }
  return new Refusal(response.status, error, Number(response.headers.get("Retry-After")) || 0);
}

async function ask(method, path, body, signal) {
  const response = await fetch(home + path, {
    method, signal, headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

const json = async (...args) => (await ask(...args)).json();

export const overview = () => json("GET", "/workbench");
export const tokenize = (model, prompt, signal) => json("POST", "/tokenize", { model, prompt }, signal);
export const detokenize = (model, tokens) => json("POST", "/detokenize", { model, tokens });
export const prompts = (words) => json("GET", `/prompts?q=${encodeURIComponent(words)}`);
export const prompt = (id) => json("GET", `/prompts/${encodeURIComponent(id)}`);
export const create = (saved) => json("POST", "/prompts", saved);
export const update = (id, saved) => json("PUT", `/prompts/${encodeURIComponent(id)}`, saved);
export const erase = (id) => ask("DELETE", `/prompts/${encodeURIComponent(id)}`);

const completions = (key) => `/completions?key=${encodeURIComponent(key)}`;

export const complete = (key, body, signal) => json("POST", completions(key), body, signal);

// stream gives the choices of every event to the function as they arrive, and the usage at the end.
export async function stream(key, body, signal, take) {
  const response = await ask("POST", completions(key), { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let whole = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: ?/, "");
      if (data === "[DONE]") { whole = true; continue; }
      const said = JSON.parse(data);
      if (said.error) throw new Refusal(200, said.error, 0);
      take(said);
    }
  }
  if (!whole) throw new Refusal(200, { code: "stream_ended", message: "The stream ended before it was whole. What had come is kept." }, 0);
}

// tokensOf reads the tokens of one choice of an answer or an event. Their names are ids there: "token_id:17". A token
// that was not among the k likeliest comes behind them, and its rank is not its place there: only they are kept.
export function tokensOf(choice, k) {
  const l = choice.logprobs;
  if (!l) return [];
  return l.tokens.map((name, i) => {
    const id = idOf(name);
    const top = Object.entries(l.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ id: idOf(other), logprob })).sort((a, b) => b.logprob - a.logprob);
    return {
      id, text: l.tokens.length === 1 ? choice.text : null, logprob: l.token_logprobs[i],
      top: top.length > k ? top.filter((one) => one.id !== id) : top,
    };
  });
}

function idOf(name) {
  return Number(name.replace(/^token_id:/, ""));
}

// scored puts what prompt_logprobs says on a prompt's tokens. The first has none: nothing stands before it.
export function scored(tokens, answer) {
  const all = answer.choices[0].prompt_logprobs ?? [];
  return tokens.map((token, i) => {
    const said = all[i];
    if (!said) return token;
    const top = Object.entries(said).map(([id, one]) => ({ id: Number(id), logprob: one.logprob, rank: one.rank })).sort((a, b) => b.logprob - a.logprob);
    const own = said[token.id];
    return own ? { ...token, logprob: own.logprob, rank: own.rank, top } : token;
  });
}
