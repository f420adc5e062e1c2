import assert from "node:assert/strict";
import { test } from "node:test";
import { body, continuing, problemOf, valueOf } from "../../../console/static/workbench/chatbody.js";

const messages = [{ role: "user", content: "Hello" }];
const schema = { type: "object", properties: { city: { type: "string" } } };

test("alternatives are requested only if a number of them is set", () => {
  assert.deepEqual(body("m", messages, { seed: 1 }), { model: "m", messages, seed: 1 });
  assert.deepEqual(body("m", messages, { top_logprobs: 0 }), { model: "m", messages, logprobs: true, top_logprobs: 0 });
});

test("a schema alone becomes a response_format, and a whole one stays", () => {
  assert.deepEqual(body("m", messages, { response_format: schema }).response_format, { type: "json_schema", json_schema: { name: "answer", schema } });
  for (const whole of [{ type: "json_object" }, { type: "json_schema", json_schema: { name: "n", schema } }]) {
    assert.deepEqual(body("m", messages, { response_format: whole }).response_format, whole);
  }
});

test("a message is continued without the beginning of another one", () => {
  const request = continuing(body("m", messages, {}));
  assert.deepEqual([request.continue_final_message, request.add_generation_prompt], [true, false]);
});

test("what is wrong with a field of JSON is said", () => {
  const tool = { type: "function", function: { name: "weather" } };
  for (const [name, value, expected] of [
    ["tools", "", /^$/], ["tools", JSON.stringify([tool]), /^$/], ["tools", "[", /not JSON/], ["tools", "{}", /list of tools/], ["tools", "[]", /list of tools/],
    ["tools", JSON.stringify([tool, { name: "x" }]), /Tool 2 needs/], ["tools", JSON.stringify([tool, tool]), /“weather”/],
    ["response_format", JSON.stringify(schema), /^$/], ["response_format", "3", /JSON schema/], ["response_format", "{\"type\":\"json_schema\"}", /schema/],
    ["chat_template_kwargs", "{\"enable_thinking\": false}", /^$/], ["chat_template_kwargs", "[]", /object/],
  ]) assert.match(problemOf(name, value), expected, `${name} ${value}`);
});

test("what is wrong with the fields of JSON of a completion is said, and a schema alone is structured output", () => {
  for (const [name, text, problem] of [
    ["logit_bias", "{\"50256\": -100}", /^$/], ["logit_bias", "{\"50256\": -101}", /got “50256”/], ["logit_bias", "{\"a\": 1}", /got “a”/], ["logit_bias", "[1]", /^Expected token ids/],
    ["structured_outputs", "{\"regex\": \"a\"}", /^$/], ["structured_outputs", "[]", /^Expected a JSON schema/], ["structured_outputs", "{", /^This is not JSON/],
  ]) assert.match(problemOf(name, text), problem, `${name} ${text}`);
  assert.deepEqual(valueOf("structured_outputs", "{\"type\": \"object\"}"), { json: { type: "object" } });
  assert.deepEqual(valueOf("structured_outputs", "{\"choice\": [\"a\"]}"), { choice: ["a"] });
  assert.deepEqual(valueOf("logit_bias", "{\"7\": 1}"), { 7: 1 });
});
