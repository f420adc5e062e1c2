import assert from "node:assert/strict";
import { test } from "node:test";
import { asBatchLine, asLmEval } from "../../../console/static/workbench/copying.js";
import { asDialogue, asTranscript, asJSON, asMarkdown, asNotebook } from "../../../console/static/workbench/files.js";

const request = { model: "llama-8b", prompt: [1, 2], max_tokens: 8, temperature: 0.5 };
const branches = [
  { name: "Prompt", depth: 0, model: "llama-8b", text: "Once ```upon```", settings: null, tokens: [{ id: 1, text: "Once", logprob: null }] },
  { name: "first", depth: 1, model: "llama-8b", text: " a 'time'\\", settings: { max_tokens: 8 }, tokens: [{ id: 2, text: " a", logprob: -0.5 }] },
];

test("a batch line is one line with the request as its body", () => {
  const line = asBatchLine(request);
  assert.equal(line.trimEnd().split("\n").length, 1);
  assert.deepEqual(JSON.parse(line), { custom_id: "request-1", method: "POST", url: "/v1/completions", body: request });
});

test("lm-eval gets the model, the address and the sampling parameters", () => {
  const command = asLmEval("https://gate.example", request);
  assert.match(command, /model=llama-8b,base_url=https:\/\/gate\.example\/v1\/completions/);
  assert.match(command, /--gen_kwargs temperature=0\.5,max_gen_toks=8,do_sample=True/);
});

test("Markdown has every branch in a fence that its text does not end", () => {
  const markdown = asMarkdown("A study", branches);
  assert.match(markdown, /````\nOnce ```upon```\n````/);
  assert.match(markdown, /### first\n\nllama-8b · `max_tokens` 8\n/);
});

test("the JSON file has the tokens of every branch", () => {
  assert.deepEqual(JSON.parse(asJSON("A study", branches)), { title: "A study", branches });
});

test("a notebook has the request and the branches in cells with different ids", () => {
  const notebook = JSON.parse(asNotebook("A study", "https://gate.example", request, branches));
  assert.equal(new Set(notebook.cells.map((cell) => cell.id)).size, notebook.cells.length);
  const code = notebook.cells.filter((cell) => cell.cell_type === "code").map((cell) => cell.source.join(""));
  assert.match(code.join("\n"), /"prompt": \[1, 2\]/);
  assert.match(code.join("\n"), /Once ```upon```/);
});

const conversation = [
  { role: "system", text: "" }, { role: "user", text: "Weather?" },
  { role: "assistant", text: "", reasoning: "I need\na tool.", calls: [{ id: "c", name: "weather", arguments: "{\"city\":\"Prague\"}" }], made: { model: "talk" } },
  { role: "tool", call: "c", text: "sunny" }, { role: "assistant", text: "It is `sunny`.", made: { model: "talk" } },
];

test("a transcript has the turns with their reasoning and calls, without an empty system message", () => {
  const text = asTranscript("Title", conversation);
  assert.equal(text.includes("System"), false);
  assert.match(text, /## User\n\nWeather\?\n\n## Assistant \(talk\)\n\n> I need\n> a tool\.\n\nCalls `weather`:\n\n```json\n\{"city":"Prague"\}\n```\n\n## Tool\n\nsunny\n\n## Assistant \(talk\)\n\nIt is `sunny`\.\n$/);
  assert.equal(asDialogue(conversation), "User: Weather?\n\nAssistant:\n[calls weather {\"city\":\"Prague\"}]\n\nTool: sunny\n\nAssistant: It is `sunny`.");
});
