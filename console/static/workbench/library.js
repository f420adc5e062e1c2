// The list of saved prompts as a library. Their names say where they are: “study/prompt #draft” is the prompt of a folder, with a tag.
import { dateTime } from "../times.js";
import { button, element } from "./state.js";

// placeOf returns the parts of a name: {folder, title, tags}. A folder may be in another one; it is empty for a prompt in none.
export function placeOf(name) {
  const tags = [...new Set([...name.matchAll(/(?:^|\s)(#[^\s#/]+)/g)].map(([, tag]) => tag))];
  const path = tags.reduce((rest, tag) => rest.replace(tag, ""), name).split("/").map((part) => part.trim().replaceAll(/\s+/g, " ")).filter(Boolean);
  return { folder: path.slice(0, -1).join(" / "), title: path.at(-1) ?? name, tags };
}

// inFolders returns prompts by their folders, in the order of the list: first those in none.
export function inFolders(prompts) {
  const folders = new Map([["", []]]);
  for (const prompt of prompts) {
    const place = placeOf(prompt.name);
    if (!folders.has(place.folder)) folders.set(place.folder, []);
    folders.get(place.folder).push({ ...prompt, ...place });
  }
  return folders;
}

// copyName returns the name of a copy, which has the place of the original.
export function copyName(name) {
  const number = Number(name.match(/ \(copy(?: (\d+))?\)/)?.[1] ?? (/ \(copy\)/.test(name) ? 1 : 0)) + 1;
  const { tags } = placeOf(name);
  const [first] = tags.length ? name.split(new RegExp(`\\s(?=${tags[0]})`)) : [name];
  const begin = first.replace(/ \(copy(?: \d+)?\)$/, "");
  return `${begin} (copy${number > 1 ? ` ${number}` : ""})${name.slice(first.length)}`;
}

const closed = new Set(); // names of the folders that the user has closed

// rows returns the rows of a list. actions are {isOpen, open, remove, find}: find searches for a tag.
export function rows(prompts, actions) {
  return [...inFolders(prompts)].flatMap(([folder, all]) => {
    const items = all.map((prompt) => createRow(prompt, actions));
    if (!folder) return items;
    const details = element("details", { open: !closed.has(folder) }, element("summary", { textContent: `${folder} (${all.length})` }), element("ul", { className: "saved" }, ...items));
    details.addEventListener("toggle", () => { if (details.open) closed.delete(folder); else closed.add(folder); });
    return [element("li", { className: "folder" }, details)];
  });
}

function createRow(prompt, { isOpen, open, remove, find }) {
  const openButton = button(prompt.title, () => open(prompt.id), { className: "quiet", title: prompt.name });
  if (isOpen(prompt.id)) openButton.setAttribute("aria-current", "true");
  const tags = prompt.tags.map((tag) => button(tag, () => find(tag), { className: "tag", title: `Show the prompts with ${tag}` }));
  return element("li", {}, openButton, ...tags,
    element("small", { textContent: `${prompt.everyone ? "shared with everyone · " : prompt.share ? "shared · " : ""}${prompt.model} · ${dateTime(prompt.updated)}` }),
    button("Delete", () => remove(prompt), { className: "quiet", "aria-label": `Delete ${prompt.title}` }));
}

// sharedRows returns the rows of a list of prompts that other users have shared with everyone: links, by which they open.
export const sharedRows = (prompts) => prompts.map(({ share, name, model, owner, updated }) => element("li", {},
  element("a", { href: `/workbench?shared=${encodeURIComponent(share)}`, textContent: name }),
  element("small", { textContent: `${owner} · ${model} · ${dateTime(updated)}` })));
