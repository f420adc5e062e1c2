import assert from "node:assert/strict";
import { test } from "node:test";
import { Announcer } from "../../../console/static/workbench/announcing.js";

globalThis.document = { createElement: () => ({}) };

test("a stream is announced by sentences, and its rest at the end", () => {
  const said = [];
  const announcer = new Announcer({ replaceChildren: () => { said.length = 0; }, append: (line) => said.push(line.textContent) });
  announcer.begin();
  for (const part of ["It is 3", ".5 km", ". And", " then?", " Yes", "!"]) announcer.add(part);
  assert.deepEqual(said, ["It is 3.5 km.", "And then?"]);
  announcer.end();
  assert.deepEqual(said, ["It is 3.5 km.", "And then?", "Yes!"]);
  announcer.begin();
  announcer.add("今日は。明日");
  assert.deepEqual(said, ["今日は。"]);
});
