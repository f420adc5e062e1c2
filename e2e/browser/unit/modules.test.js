import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

const folder = new URL("../../../console/static/workbench/", import.meta.url);
const modules = new Map(readdirSync(folder).map((name) => [name, readFileSync(new URL(name, folder), "utf8")]));
const importsOf = (name) => [...(modules.get(name) ?? "").matchAll(/ from "\.\/([^"]+)"/g)].map(([, imported]) => imported);

// circleFrom returns the first circle of imports that a module leads to, or null.
function circleFrom(name, path, done) {
  if (path.includes(name)) return [...path.slice(path.indexOf(name)), name];
  if (done.has(name)) return null;
  for (const imported of importsOf(name)) {
    const circle = circleFrom(imported, [...path, name], done);
    if (circle) return circle;
  }
  done.add(name);
  return null;
}

test("the modules of the workbench do not import each other in a circle", () => {
  const done = new Set();
  assert.ok(importsOf("page.js").length > 10);
  for (const name of modules.keys()) assert.equal(circleFrom(name, [], done)?.join(" > "), undefined);
});

test("no module of the workbench has more than 250 lines", () => {
  for (const [name, text] of modules) assert.ok(text.split("\n").length <= 251, `${name} has ${text.split("\n").length - 1} lines`);
});
