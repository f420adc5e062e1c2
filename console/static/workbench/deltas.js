// What the events of a chat stream add to a turn.
import { idOf, joinParts } from "./api.js";
import { words } from "./turns.js";

// addDelta returns the fields of a turn that a choice of an event changes. k is the number of alternatives that were asked for.
export function addDelta(turn, { delta = {}, logprobs, finish_reason }, k) {
  const content = delta.content ?? "";
  const reasoning = delta.reasoning ?? delta.reasoning_content ?? "";
  return {
    text: turn.text + content,
    tokens: joinParts(turn.tokens, tokensOf(turn, { content, reasoning, calls: delta.tool_calls, logprobs, finish_reason }, k)),
    reasoning: (turn.reasoning ?? "") + reasoning,
    calls: addCalls(turn.calls ?? [], delta.tool_calls ?? []),
    finish: finish_reason ?? turn.finish,
  };
}

// tokensOf returns the tokens of the content alone: log-probabilities are also those of reasoning, calls and the marks around
// them. Where an event has content without a probability for each of its tokens, it is shown as words.
function tokensOf(turn, { content, reasoning, calls, logprobs, finish_reason }, k) {
  const entries = logprobs?.content ?? [];
  if (!content) {
    const begun = turn.text && !reasoning && !calls?.length;
    if (!begun) return [];
    const ends = finish_reason === "stop" && entries.length === 1;
    return entries.map((entry) => tokenOf(entry, ends ? "" : null, k));
  }
  if (!entries.length || reasoning) return words(content);
  return entries.map((entry) => tokenOf(entry, entries.length === 1 ? content : null, k));
}

// tokenOf returns a token as tree.js describes it. vLLM lists the chosen token among the k likeliest even if it is not one of
// them, in the place of the last: so one more is requested, and the chosen one is left out if it is the least likely, because
// its rank is not known then.
function tokenOf({ token, logprob, top_logprobs }, text, k) {
  const id = idOf(token);
  const top = (top_logprobs ?? []).map((other) => ({ id: idOf(other.token), logprob: other.logprob })).sort((a, b) => b.logprob - a.logprob);
  if (top.length > 1 && top.at(-1).id === id) top.pop();
  return { id, text, logprob, top: top.slice(0, k) };
}

// addCalls adds the parts of tool calls to those that have begun. The first part of a call has its id and its name.
function addCalls(calls, parts) {
  const all = [...calls];
  for (const { index = 0, id, function: { name, arguments: more } = {} } of parts) {
    const call = all[index] ?? { id: "", name: "", arguments: "" };
    all[index] = { id: id || call.id, name: call.name || name || "", arguments: call.arguments + (more ?? "") };
  }
  return all.filter(Boolean);
}
