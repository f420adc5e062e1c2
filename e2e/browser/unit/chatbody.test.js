import assert from "node:assert/strict";
import { test } from "node:test";
import { body, continuing, problemOf } from "../../../console/static/workbench/chatbody.js";

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
