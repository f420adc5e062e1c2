// The request as code for users with a key: a shell command, Python, Node.js, JSON, a line of a batch, or the arguments of
// lm-eval. A request with messages is a chat completion.
const isChat = (request) => Boolean(request.messages);
const pathOf = (request) => (isChat(request) ? "/v1/chat/completions" : "/v1/completions");

export function body(model, prompt, settings) {
  return { model, prompt, ...settings };
}

export function asJSON(request) {
  return JSON.stringify(request, null, 2);
}

export function asCurl(base, request) {
  const quoted = asJSON(request).replaceAll("'", "'\\''");
  return `curl ${base}${pathOf(request)} \\\n  -H "Authorization: Bearer $BASEGATE_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${quoted}'\n`;
}

// asBatchLine returns the request as one line of the input file of a batch.
export function asBatchLine(request) {
  return `${JSON.stringify({ custom_id: "request-1", method: "POST", url: pathOf(request), body: request })}\n`;
}

// asLmEval returns a command of lm-eval for the model of the request. It sends token ids, so it needs the model's tokenizer.
export function asLmEval(base, request) {
  const generation = ["temperature", "top_p", "max_tokens", "seed"].filter((name) => request[name] !== undefined)
    .map((name) => `${name === "max_tokens" ? "max_gen_toks" : name}=${request[name]}`);
  if (request.temperature > 0) generation.push("do_sample=True");
  return `export OPENAI_API_KEY=$BASEGATE_KEY\n# TOKENIZER is the model's name at Hugging Face, or a folder with its tokenizer; TASK is a task of lm-eval, such as arc_easy.\n`
    + `lm_eval run --model local-completions --tasks TASK --batch_size 1 \\\n`
    + `  --model_args model=${request.model},base_url=${base}/v1/completions,tokenizer=TOKENIZER,tokenizer_backend=huggingface,num_concurrent=8`
    + (generation.length ? ` \\\n  --gen_kwargs ${generation.join(",")}\n` : "\n");
}

// The parameters that the OpenAI library for Python has. It sends any other ones if they are in extra_body.
const common = ["model", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "logprobs", "stop", "logit_bias"];
const knownOfCompletions = new Set([...common, "prompt", "max_tokens", "echo"]);
const knownOfChat = new Set([...common, "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "response_format"]);

export function asPython(base, request) {
  const known = isChat(request) ? knownOfChat : knownOfCompletions;
  const args = Object.entries(request).filter(([name]) => known.has(name));
  const extra = Object.entries(request).filter(([name]) => !known.has(name));
  const lines = args.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (extra.length) lines.push(`    extra_body={${extra.map(([name, value]) => `${literal(name)}: ${literal(value)}`).join(", ")}},`);
  const [method, result] = isChat(request) ? ["chat.completions", "message"] : ["completions", "text"];
  return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key=os.environ["BASEGATE_KEY"])\nanswer = client.${method}.create(\n${lines.join("\n")}\n)\nprint(answer.choices[0].${result})\n`;
}

// asNode returns the request for the OpenAI library for Node.js, which sends parameters that it does not know as they are.
export function asNode(base, request) {
  const [method, result] = isChat(request) ? ["chat.completions", "message"] : ["completions", "text"];
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${base}/v1", apiKey: process.env.BASEGATE_KEY });\nconst answer = await client.${method}.create(${asJSON(request)});\nconsole.log(answer.choices[0].${result});\n`;
}

// literal returns a value as a Python literal. Strings and numbers are written as in JSON, which differs only for unpaired
// surrogates.
export function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null || value === undefined) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, v]) => `${literal(name)}: ${literal(v)}`).join(", ")}}`;
  return JSON.stringify(value);
}
