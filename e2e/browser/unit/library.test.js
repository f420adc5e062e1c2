import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { getElementById: () => ({ dataset: {} }) };
const { copyName, inFolders, placeOf } = await import("../../../console/static/workbench/library.js");

test("a name says the folder, the title and the tags of a prompt", () => {
  for (const [name, folder, title, ...tags] of [
    ["A study", "", "A study"], ["study/A prompt", "study", "A prompt"], ["study / 2026 / a  b #draft #llama", "study / 2026", "a b", "#draft", "#llama"],
    ["#1", "", "#1", "#1"], ["a/", "", "a"], ["C#", "", "C#"], ["/", "", "/"], ["issue #12 of it", "", "issue of it", "#12"],
  ]) assert.deepEqual(placeOf(name), { folder, title, tags }, name);
});

test("prompts are in their folders, in their order, first those in none", () => {
  const names = ["b/2", "1", "a/3", "b/1", "2"].map((name) => ({ name }));
  assert.deepEqual([...inFolders(names)].map(([folder, all]) => [folder, all.map(({ title }) => title)]), [["", ["1", "2"]], ["b", ["2", "1"]], ["a", ["3"]]]);
});

test("a copy has a name of its own in the same place", () => {
  for (const [name, copy] of [["A", "A (copy)"], ["A (copy)", "A (copy 2)"], ["A (copy 2)", "A (copy 3)"], ["f/A #x #y", "f/A (copy) #x #y"], ["f/A (copy) #x", "f/A (copy 2) #x"]]) assert.equal(copyName(name), copy);
});
