// The tree as files: JSON, Markdown, and a Jupyter notebook; and a conversation as Markdown or plain text. A branch is {name, depth, model, text, tokens, settings}; text is
// what it adds to its parent's, and tokens are [{id, text, logprob}].
import { literal } from "./copying.js";
import { ofLoom } from "./loom.js";
import { pack } from "./tree.js";

export function asJSON(title, branches) {
  return `${JSON.stringify({ title, branches }, null, 2)}\n`;
}

// asDocument returns the whole document, which ofDocument reads: {name, model, document}. The number is that of the file's format.
export const asDocument = (prompt) => `${JSON.stringify({ workbench: 1, ...prompt })}\n`;

export function ofDocument(text) {
  let file = null;
  try { file = JSON.parse(text); } catch { /* it is another kind of file */ }
  if (file?.workbench === 1 && file.document) return file;
  const doc = ofLoom(file);
  if (!doc) throw new Error("This is not a document of the workbench. It opens the files of “Whole document”, and those of Loom and Loomsidian.");
  return { name: "", model: null, document: { tree: pack(doc) } };
}

export function asMarkdown(title, branches) {
  const parts = [`# ${title}\n`];
  for (const { name, depth, model, text, settings } of branches) {
    parts.push(`${"#".repeat(Math.min(6, depth + 2))} ${name.replaceAll("\n", " ")}\n`);
    const values = Object.entries(settings ?? {}).map(([key, value]) => `\`${key}\` ${JSON.stringify(value)}`);
    parts.push([model, ...values].filter(Boolean).join(" · ") + "\n");
    parts.push(`${fence(text)}\n${text}\n${fence(text)}\n`);
  }
  return parts.join("\n");
}

const roleNames = { system: "System", user: "User", assistant: "Assistant", tool: "Tool" };

// asTranscript returns a conversation as Markdown. A turn is a node as turns.js describes it.
export function asTranscript(title, turns) {
  const parts = [`# ${title}\n`];
  for (const { role, text, reasoning, calls, made } of turns) {
    if (role === "system" && !text) continue;
    parts.push(`## ${roleNames[role]}${made ? ` (${made.model})` : ""}\n`);
    if (reasoning) parts.push(`${reasoning.trim().split("\n").map((line) => `> ${line}`.trimEnd()).join("\n")}\n`);
    if (text) parts.push(`${text}\n`);
    for (const call of calls ?? []) parts.push(`Calls \`${call.name}\`:\n\n${fence(call.arguments)}json\n${call.arguments}\n${fence(call.arguments)}\n`);
  }
  return parts.join("\n");
}

// asDialogue returns a conversation as plain text.
export function asDialogue(turns) {
  return turns.filter(({ role, text, calls }) => text || calls?.length || role !== "system").map(({ role, text, calls }) =>
    [`${roleNames[role]}: ${text}`.trimEnd(), ...(calls ?? []).map((call) => `[calls ${call.name} ${call.arguments}]`)].join("\n")).join("\n\n");
}

// fence returns a fence that is longer than those in a text.
function fence(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  return "`".repeat(longest + 1);
}

// asNotebook returns a notebook that sends the request again with Python's standard library, and has the branches as data.
export function asNotebook(title, base, request, branches) {
  const data = JSON.stringify(branches.map(({ name, model, text, tokens }) => ({ name, model, text, tokens: tokens.map(({ text: t, logprob }) => [t, logprob]) })));
  const cells = [
    markdown(`# ${title}\n\nMade by the workbench. Set \`BASEGATE_KEY\` to an API key before you start Jupyter. The code needs nothing but Python 3.8 or later.`),
    code(`import json, math, os, urllib.request\n\nBASE_URL = os.environ.get("BASEGATE_URL", ${literal(base)})\n\ndef complete(body):\n    request = urllib.request.Request(\n        BASE_URL + "/v1/completions", data=json.dumps(body).encode(),\n        headers={"Authorization": "Bearer " + os.environ["BASEGATE_KEY"], "Content-Type": "application/json"})\n    with urllib.request.urlopen(request) as response:\n        return json.load(response)`),
    markdown("The request of the selected branch, and its answer:"),
    code(`request = ${pretty(request)}\n\nanswer = complete(request)\nfor choice in answer["choices"]:\n    print(choice["text"])`),
    markdown("How surprising each generated token is, in bits:"),
    code(`for choice in answer["choices"]:\n    logprobs = choice.get("logprobs") or {}\n    for token, logprob in zip(logprobs.get("tokens", []), logprobs.get("token_logprobs", [])):\n        if logprob is not None:\n            print(f"{-logprob / math.log(2):6.2f}  {token!r}")`),
    markdown("The branches of the workbench, with the log-probabilities that were known there:"),
    code(`branches = json.loads(${literal(data)})\n\nfor branch in branches:\n    known = [logprob for _, logprob in branch["tokens"] if logprob is not None]\n    bits = -sum(known) / math.log(2)\n    print(f'{branch["name"][:50]!r}: {len(branch["tokens"])} tokens, {bits:.2f} bits')`),
  ];
  return `${JSON.stringify({ cells, metadata: { kernelspec: { display_name: "Python 3", language: "python", name: "python3" }, language_info: { name: "python" } }, nbformat: 4, nbformat_minor: 5 }, null, 1)}\n`;
}

const pretty = (request) => `{\n${Object.entries(request).map(([name, value]) => `    ${literal(name)}: ${literal(value)},`).join("\n")}\n}`;

let cellCount = 0;
const cell = (type, source, more) => ({ cell_type: type, id: `cell-${++cellCount}`, metadata: {}, ...more, source: source.split(/(?<=\n)/) });
const markdown = (source) => cell("markdown", source, {});
const code = (source) => cell("code", source, { execution_count: null, outputs: [] });
