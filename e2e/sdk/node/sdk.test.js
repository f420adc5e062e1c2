// Tests of the gateway with the official Node SDK, unmodified.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const model = "llama-8b";
// Options of a test that relies on the mock's texts or faults.
const mock = { skip: process.env.REAL_BASE_URL && "needs the mock" };
const client = new OpenAI({ maxRetries: 0 });

test("completion", mock, async () => {
  const completion = await client.completions.create({ model, prompt: "The capital of France is", max_tokens: 16, temperature: 0 });
  assert.ok(completion.choices[0].text.startsWith(" Paris"));
  assert.ok(completion.usage.completion_tokens <= 16);
});

test("logprobs, prompt_logprobs and echo", async () => {
  const completion = await client.completions.create({
    model, prompt: "The capital of France is", max_tokens: 1, logprobs: 5, echo: true, prompt_logprobs: 2,
  });
  const [choice] = completion.choices;
  assert.ok(choice.text.startsWith("The capital of France is"));
  assert.equal(choice.logprobs.token_logprobs[0], null);
  assert.equal(choice.prompt_logprobs[0], null);
});

test("top_k and seed", async () => {
  const params = { model, prompt: "The capital of France is", max_tokens: 8 };
  const texts = [];
  for (const more of [{ temperature: 0 }, { top_k: 1 }, { seed: 7 }, { seed: 7 }]) {
    texts.push((await client.completions.create({ ...params, ...more })).choices[0].text);
  }
  assert.equal(texts[0], texts[1]);
  assert.equal(texts[2], texts[3]);
});

test("stream, with usage if requested", async () => {
  const plain = [];
  for await (const chunk of await client.completions.create({ model, prompt: "Once", max_tokens: 9, stream: true })) plain.push(chunk);
  assert.ok(plain.every((chunk) => chunk.choices.length === 1));
  let last;
  const params = { model, prompt: "Once", max_tokens: 9, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.completions.create(params)) last = chunk;
  assert.deepEqual(last.choices, []);
  assert.ok(last.usage.completion_tokens > 0);
});

test("fan-out", async () => {
  const completions = await Promise.all(
    Array.from({ length: 32 }, (_, i) => client.completions.create({ model, prompt: `Sample ${i}:`, max_tokens: 8 })),
  );
  assert.equal(completions.length, 32);
});

test("models", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(model));
  assert.equal((await client.models.retrieve(model)).checkpoint, "meta-llama/Llama-3.1-8B");
});

test("errors have code and param, and 400 is not retried", async () => {
  let requests = 0;
  const counted = (...request) => { requests++; return fetch(...request); };
  const retrying = new OpenAI({ maxRetries: 3, fetch: counted });
  await assert.rejects(retrying.completions.create({ model, prompt: "x", temprature: 1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "invalid_request");
    assert.equal(error.param, "temprature");
    return true;
  });
  assert.equal(requests, 1);
  await assert.rejects(retrying.completions.create({ model: "nothing", prompt: "x" }), { code: "model_not_found" });
  assert.equal(requests, 2);
  await assert.rejects(client.chat.completions.create({ model, messages: [] }), { code: "chat_completions_unsupported" });
  await assert.rejects(new OpenAI({ apiKey: "acs-bm-wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
});

test("an interrupted stream throws after the received events", mock, async () => {
  const faulty = new OpenAI({ baseURL: process.env.FAULTY_BASE_URL, apiKey: process.env.FAULTY_API_KEY, maxRetries: 0 });
  const fault = { kind: "error_event", after_events: 2 };
  await fetch(`${process.env.FAULTY_MOCK}/mock/fault`, { method: "POST", body: JSON.stringify(fault) });
  let seen = 0;
  await assert.rejects(async () => {
    const stream = await faulty.completions.create({ model: "faulty", prompt: "Once upon", max_tokens: 12, seed: 1, stream: true });
    for await (const _ of stream) seen++;
  }, OpenAI.APIError);
  assert.equal(seen, 2);
});

// lines returns an input file of so many lines.
const lines = (count, maxTokens = 4) => Array.from({ length: count }, (_, i) => JSON.stringify({
  custom_id: `line-${i}`, method: "POST", url: "/v1/completions", body: { model, prompt: `Fact ${i}:`, max_tokens: maxTokens },
}) + "\n").join("");

// ended waits for the end of a batch.
const ended = async (batch) => {
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  return batch;
};

test("a file becomes results", async () => {
  const file = await client.files.create({
    file: await OpenAI.toFile(Buffer.from(lines(20)), "facts.jsonl"), purpose: "batch", expires_after: { anchor: "created_at", seconds: 3600 },
  });
  assert.equal(file.filename, "facts.jsonl");
  assert.equal(file.expires_at - file.created_at, 3600);
  assert.deepEqual(await client.files.retrieve(file.id), file);
  const create = { input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h", metadata: { run: "8" } };
  const batch = await ended(await client.batches.create(create));
  assert.equal(batch.status, "completed");
  assert.deepEqual(batch.request_counts, { total: 20, completed: 20, failed: 0 });
  assert.deepEqual(batch.metadata, { run: "8" });
  const content = await (await client.files.content(batch.output_file_id)).text();
  const ids = new Set(content.trim().split("\n").map((line) => JSON.parse(line).custom_id));
  assert.equal(ids.size, 20);
  const found = [];
  for await (const b of client.batches.list({ limit: 1 })) {
    found.push(b.id);
    if (found.length === 3 || b.id === batch.id) break;
  }
  assert.ok(found.includes(batch.id));
  for await (const f of client.files.list({ purpose: "batch_output", limit: 1 })) {
    assert.equal(f.purpose, "batch_output");
    if (f.id === batch.output_file_id) break;
  }
  assert.ok((await client.files.delete(file.id)).deleted);
  await assert.rejects(client.files.content(file.id), OpenAI.NotFoundError);
});

test("a batch is cancelled, and its files are in use until then", async () => {
  const file = await client.files.create({ file: new File([lines(2000, 200)], "long.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/completions", completion_window: "1h" });
  await assert.rejects(client.files.delete(file.id), { status: 409, code: "file_in_use" });
  assert.ok(["cancelling", "cancelled"].includes((await client.batches.cancel(batch.id)).status));
  batch = await ended(batch);
  assert.equal(batch.status, "cancelled");
  await assert.rejects(client.batches.cancel(batch.id), { status: 409, code: "batch_not_cancellable" });
});

const chatModel = "llama-8b-instruct";
const ask = [{ role: "user", content: "The capital of France is" }];

test("chat, plain and streamed", mock, async () => {
  const params = { model: chatModel, messages: ask, max_completion_tokens: 12, seed: 7 };
  const whole = await client.chat.completions.create({ ...params, logprobs: true, top_logprobs: 1 });
  assert.equal(whole.choices[0].logprobs.content.length, whole.usage.completion_tokens);
  const final = await client.chat.completions.stream(params).finalChatCompletion();
  assert.equal(final.choices[0].message.content, whole.choices[0].message.content);
});

test("chat runs tools and sends back what the SDK has parsed", mock, async () => {
  const called = [];
  const runner = client.chat.completions.runTools({
    model: chatModel, messages: ask, max_completion_tokens: 300, seed: 7,
    tools: [{
      type: "function",
      function: {
        name: "weather", description: "The weather of a city.", parse: JSON.parse,
        function: ({ city }) => { called.push(city); return "sunny"; },
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    }],
  });
  assert.ok(await runner.finalContent());
  assert.equal(called.length, 1);
});

test("chat answers in the form of a schema", mock, async () => {
  const answer = await client.chat.completions.parse({
    model: chatModel, messages: ask, max_completion_tokens: 200,
    response_format: {
      type: "json_schema",
      json_schema: {
        name: "city", strict: true,
        schema: { type: "object", properties: { name: { type: "string" } }, required: ["name"], additionalProperties: false },
      },
    },
  });
  assert.equal(typeof answer.choices[0].message.parsed.name, "string");
  const again = await client.chat.completions.create({
    model: chatModel, messages: [...ask, answer.choices[0].message, ...ask], max_completion_tokens: 5,
  });
  assert.ok(again.choices.length);
});

// What the SDK gave for three turns with a tool and reasoning is sent back as it is; the second ends within its reasoning.
const turns = {
  plain: (chat, params) => chat.create(params),
  streamed: (chat, params) => chat.stream(params).finalChatCompletion(),
};
for (const [name, ask] of Object.entries(turns)) {
  test(`chat of three turns, ${name}`, mock, async () => {
    const { chat } = new OpenAI({ baseURL: process.env.FAULTY_BASE_URL, apiKey: process.env.FAULTY_API_KEY, maxRetries: 0 });
    const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
    const messages = [];
    const say = async (message, limit) => {
      messages.push(message);
      const params = { model: chatModel, messages, tools, max_completion_tokens: limit, seed: 7 };
      const answer = (await ask(chat.completions, params)).choices[0].message;
      messages.push(answer);
      return answer;
    };
    for (const [turn, limit] of [99, 3, 99].entries()) {
      const called = await say({ role: "user", content: `How is the weather in town ${turn}?` }, 99);
      const answer = await say({ role: "tool", tool_call_id: called.tool_calls[0].id, content: "sunny" }, limit);
      assert.equal(Boolean(answer.content), limit === 99);
    }
  });
}
