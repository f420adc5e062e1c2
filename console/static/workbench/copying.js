// The request as code for users with a key: a shell command, Python or JSON.
export function body(model, prompt, settings) {
  return { model, prompt, ...settings };
}

export function asJSON(request) {
  return JSON.stringify(request, null, 2);
}

export function asCurl(base, request) {
  const quoted = asJSON(request).replaceAll("'", "'\\''");
  return `curl ${base}/v1/completions \\\n  -H "Authorization: Bearer $BASEGATE_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${quoted}'\n`;
}

// The parameters that the OpenAI library has. It sends any other ones if they are in extra_body.
const known = new Set(["model", "prompt", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "n", "logprobs", "stop", "echo"]);

export function asPython(base, request) {
  const args = Object.entries(request).filter(([name]) => known.has(name));
  const extra = Object.entries(request).filter(([name]) => !known.has(name));
  const lines = args.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (extra.length) lines.push(`    extra_body={${extra.map(([name, value]) => `${literal(name)}: ${literal(value)}`).join(", ")}},`);
  return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key=os.environ["BASEGATE_KEY"])\nanswer = client.completions.create(\n${lines.join("\n")}\n)\nprint(answer.choices[0].text)\n`;
}

// literal returns a value as a Python literal. Strings and numbers are written as in JSON, which differs only for unpaired
// surrogates.
function literal(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  return JSON.stringify(value);
}
