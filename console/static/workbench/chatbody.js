// The body of a chat completion, and what is wrong with the JSON that the user wrote for it.

// mostAlternatives is the largest top_logprobs of the API.
export const mostAlternatives = 20;

// body returns a request. settings are those of the form: a response_format may be a schema alone.
export function body(model, messages, settings) {
  const { top_logprobs, response_format, ...rest } = settings;
  const request = { model, messages, ...rest };
  if (top_logprobs !== undefined) Object.assign(request, { logprobs: true, top_logprobs });
  if (response_format !== undefined) request.response_format = formatOf(response_format);
  return request;
}

// continuing returns a request that continues the last message.
export const continuing = (request) => ({ ...request, add_generation_prompt: false, continue_final_message: true });

// formatOf returns a response_format: the one that was written, or that of a JSON schema.
function formatOf(value) {
  if (["text", "json_object", "json_schema"].includes(value?.type)) return value;
  return { type: "json_schema", json_schema: { name: "answer", schema: value } };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// checks return what is wrong with the value of a field, or an empty string.
const checks = {
  tools(value) {
    if (!Array.isArray(value) || !value.length) return "Expected a list of tools: [{\"type\": \"function\", \"function\": {\"name\": …}}]";
    const names = value.map((tool) => (isObject(tool) && tool.type === "function" && isObject(tool.function) && typeof tool.function.name === "string" ? tool.function.name : ""));
    const wrong = names.findIndex((name) => !name);
    if (wrong >= 0) return `Tool ${wrong + 1} needs "type": "function" and a "function" with a "name".`;
    const repeated = names.find((name, i) => names.indexOf(name) !== i);
    return repeated ? `Two tools have the name “${repeated}”.` : "";
  },
  response_format(value) {
    if (!isObject(value)) return "Expected a JSON schema, such as {\"type\": \"object\", \"properties\": {…}}";
    return value.type === "json_schema" && !isObject(value.json_schema?.schema) ? "“json_schema” needs a “schema”." : "";
  },
  structured_outputs: (value) => (isObject(value) ? "" : "Expected a JSON schema, or an object such as {\"regex\": \"[0-9]+\"}"),
  logit_bias(value) {
    const wrong = isObject(value) ? Object.entries(value).find(([id, bias]) => !/^\d+$/.test(id) || typeof bias !== "number" || Math.abs(bias) > 100) : [""];
    return wrong ? `Expected token ids and numbers from -100 to 100, such as {"50256": -100}${wrong[0] ? `; got “${wrong[0]}”` : ""}` : "";
  },
  repetition_detection: (value) => (isObject(value) ? "" : "Expected an object, such as {\"max_pattern_size\": 20, \"min_count\": 4}"),
  vllm_xargs: (value) => (isObject(value) ? "" : "Expected an object of names and values"),
  chat_template_kwargs: (value) => (isObject(value) ? "" : "Expected an object, such as {\"enable_thinking\": false}"),
};

const constraints = ["json", "regex", "choice", "grammar", "json_object"];

// valueOf returns the value of a field of JSON that has no problem. A schema alone is structured output.
export function valueOf(name, text) {
  const value = JSON.parse(text);
  return name === "structured_outputs" && !constraints.some((constraint) => constraint in value) ? { json: value } : value;
}

// problemOf returns what is wrong with the text of a field of JSON, or an empty string. A blank one is not sent.
export function problemOf(name, text) {
  if (!text.trim()) return "";
  try {
    return checks[name](JSON.parse(text));
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}
