import { signInAgain } from "../session.js";

// The client of the console's API. Every failed request throws an ApiError with the code and the message of the API.
const basePath = "/console/api";

export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `The gateway answered ${status}.`);
    Object.assign(this, { status, code: error?.code ?? "", param: error?.param ?? null, details: error ?? {}, retryAfter });
  }
}

async function errorOf(response) {
  let error = null;
  try { error = (await response.json()).error; } catch { /* the response is not the gateway's: it is not JSON */ }
  return new ApiError(response.status, error, Number(response.headers.get("Retry-After")) || 0);
}

// send sends a request. If the session has ended, the user signs in over the page, and the request is sent again.
async function send(method, path, body, signal, mayAsk = true) {
  const response = await request(basePath + path, {
    method, signal, headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
  });
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401 && error.code === "unauthorized" && mayAsk && (await signInAgain())) return send(method, path, body, signal, false);
  throw error;
}

// request is fetch, except that it throws an ApiError if the gateway cannot be reached.
async function request(...args) {
  try {
    return await fetch(...args);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw connectionLost();
  }
}

const connectionLost = () => new ApiError(0, { code: "connection_lost", message: "The connection to the gateway was lost." }, 0);

const sendForJSON = async (...args) => (await send(...args)).json();

export const getOptions = (mayAsk = true) => sendForJSON("GET", "/workbench", undefined, undefined, mayAsk);
// tokenize returns the token ids of a text. A fragment continues other tokens, so it has no special token at its beginning.
export const tokenize = (model, prompt, fragment, signal) => sendForJSON("POST", "/tokenize", { model, prompt, fragment }, signal);
export const detokenize = (model, tokens) => sendForJSON("POST", "/detokenize", { model, tokens });
export const searchPrompts = (words) => sendForJSON("GET", `/prompts?q=${encodeURIComponent(words)}`);
export const getPrompt = (id) => sendForJSON("GET", `/prompts/${encodeURIComponent(id)}`);
// createPrompt and updatePrompt take the JSON of a prompt as text: it is large.
export const createPrompt = (prompt) => sendForJSON("POST", "/prompts", prompt);
export const updatePrompt = (id, prompt) => sendForJSON("PUT", `/prompts/${encodeURIComponent(id)}`, prompt);
export const deletePrompt = (id) => send("DELETE", `/prompts/${encodeURIComponent(id)}`);
export const getVersions = (id) => sendForJSON("GET", `/prompts/${encodeURIComponent(id)}/versions`);
export const getVersion = (id, version) => sendForJSON("GET", `/prompts/${encodeURIComponent(id)}/versions/${version}`);
export const deleteVersion = (id, version) => send("DELETE", `/prompts/${encodeURIComponent(id)}/versions/${version}`);

export const getPresets = () => sendForJSON("GET", "/presets");
export const savePreset = (mode, name, settings) => send("PUT", "/presets", { mode, name, settings });
export const deletePreset = (mode, name) => send("DELETE", `/presets?mode=${mode}&name=${encodeURIComponent(name)}`);
export const sharePrompt = (id) => sendForJSON("POST", `/prompts/${encodeURIComponent(id)}/share`, {});
export const shareWithEveryone = (id, everyone) => send("PUT", `/prompts/${encodeURIComponent(id)}/share`, { everyone });
export const unsharePrompt = (id) => send("DELETE", `/prompts/${encodeURIComponent(id)}/share`);
export const getSharedPrompt = (share) => sendForJSON("GET", `/shared/${encodeURIComponent(share)}`);

export const estimate = (key, body, signal) => sendForJSON("POST", `/estimate?key=${encodeURIComponent(key)}`, body, signal, false);

// The paths that stream takes.
export const completionsPath = "/completions";
export const chatPath = "/chat/completions";

const withKey = (path, key) => `${path}?key=${encodeURIComponent(key)}`;

export const loglikelihood = (key, body, signal) => sendForJSON("POST", withKey("/loglikelihood", key), body, signal);

// withTexts returns tokens with their texts as detokenize returns them. The last one of several that make a character has
// the character, and joins says how many before it are parts of it.
export function withTexts(tokens, { pieces, characters = [] }) {
  const joined = new Map(characters.map((c) => [c.at + c.tokens - 1, c]));
  return tokens.map((token, i) => {
    if (token.text === "") return token; // it ends a turn, and its name is no part of the text
    const { joins, ...plain } = token;
    const character = joined.get(i);
    return character ? { ...plain, text: character.text, joins: character.tokens - 1 } : { ...plain, text: pieces[i] };
  });
}

// joinParts returns the tokens of a node with those added that a stream has sent. The gateway holds the text of a character
// back until its last token: this token joins those before it that have no text.
export function joinParts(tokens, added) {
  const all = [...tokens];
  for (const token of added) {
    let parts = 0;
    while (parts < 3 && all.at(-1 - parts)?.text === null) parts++;
    all.push(token.text && parts && /[^\x00-\x7f]/.test(token.text) ? { ...token, joins: parts } : token);
  }
  return all;
}

// stream requests a completion or chat completion and calls onEvent with the data of each event. That of the last event has
// the usage.
export async function stream(path, key, body, signal, onEvent) {
  const response = await send("POST", withKey(path, key), { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let incomplete = "";
  let complete = false;
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw error.name === "AbortError" ? error : connectionLost(); });
    if (done) break;
    const events = (incomplete + value).split("\n\n");
    incomplete = events.pop();
    for (const event of events) {
      const text = event.replace(/^data: ?/, "");
      if (text === "[DONE]") { complete = true; continue; }
      const data = JSON.parse(text);
      if (data.error) throw new ApiError(200, data.error, 0);
      onEvent(data);
    }
  }
  if (!complete) throw new ApiError(200, { code: "stream_ended", message: "The response ended early." }, 0);
}

// tokensOf returns the tokens of a choice of a completion or an event. logprobs names tokens by their ids: "token_id:17". If
// a token is not among the k likeliest, vLLM appends it to them: it is removed, since its place there is not its rank.
export function tokensOf(choice, k) {
  const l = choice.logprobs;
  if (!l) return [];
  return l.tokens.map((name, i) => {
    const id = idOf(name);
    const top = Object.entries(l.top_logprobs?.[i] ?? {})
      .map(([other, logprob]) => ({ id: idOf(other), logprob }))
      .sort((a, b) => b.logprob - a.logprob);
    return {
      id, text: l.tokens.length === 1 ? choice.text || null : null, logprob: l.token_logprobs[i],
      top: top.length > k ? top.filter((alternative) => alternative.id !== id) : top,
    };
  });
}

export function idOf(name) {
  return Number(name.replace(/^token_id:/, ""));
}

// withLogprobs returns tokens with the token_logprobs of a log-likelihood of all but the first of them.
export function withLogprobs(tokens, logprobs) {
  return tokens.map((token, i) => {
    if (i === 0) return token;
    const { logprob, rank, top = [] } = logprobs[i - 1];
    return { ...token, logprob, rank, top: top.map((likely) => ({ id: likely.token_id, logprob: likely.logprob, rank: likely.rank })) };
  });
}
