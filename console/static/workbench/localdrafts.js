// What localStorage has of drafts: the last changes of a page that was left, which is the only place that stores them in time, and
// the drafts of earlier versions of the workbench, which kept each as one text.
import * as packing from "./packing.js";
import * as store from "./draftstore.js";
import * as tree from "./tree.js";
import { lockOf } from "./tabs.js";

const leavingPrefix = "basegate-draft-leaving:";
const oldKey = /^basegate-draft:(.*):([^:#]+)(?:#(\d+))?$/;

// keep stores the last changes of a draft, as draftstore's put takes them. isWhole says that they are all of its nodes.
export function keep(draft, changed, removed, isWhole) {
  const nodes = changed.map((node) => ({ ...node, tokens: packing.asJSON(node.tokens) }));
  localStorage.setItem(leavingPrefix + draft.id, JSON.stringify({ draft, nodes, removed, isWhole }));
}

// keepRemoval keeps that a draft is removed, until discard: the page may be left before the browser has deleted it.
export const keepRemoval = (id, owner) => localStorage.setItem(leavingPrefix + id, JSON.stringify({ draft: { id, owner }, isRemoved: true }));

// discard deletes what is kept of a draft that was removed.
export const discard = (id) => localStorage.removeItem(leavingPrefix + id);

// migrate moves all to the store of drafts. What the browser has no room for, or what cannot be read, stays.
export async function migrate(db) {
  let keys = [];
  try { keys = Object.keys(localStorage); } catch { /* storage may be disabled */ }
  for (const key of keys) {
    const move = key.startsWith(leavingPrefix) ? moveLast : oldKey.test(key) ? moveOld : null;
    try {
      await move?.(db, key);
      if (move) localStorage.removeItem(key);
    } catch { /* it is tried again when the page is loaded again */ }
  }
}

// moveLast adds the last changes to their draft, or removes it, unless another tab has taken it over or it was removed.
async function moveLast(db, key) {
  const { draft, nodes = [], removed, isWhole, isRemoved } = JSON.parse(localStorage.getItem(key));
  const changed = nodes.map((node) => ({ ...node, tokens: packing.ofJSON(node.tokens) }));
  const tx = store.write(db);
  const stored = await tx.objectStore("drafts").get(draft.id);
  const isOwn = stored?.owner === draft.owner;
  if (isRemoved && isOwn) store.remove(tx, draft.id);
  if (!isRemoved && (stored ? isOwn && !(stored.revision > draft.revision) : isWhole)) store.put(tx, draft, changed, removed);
  await tx.done;
}

async function moveOld(db, key) {
  const { tree: saved, time = 0, ...fields } = JSON.parse(localStorage.getItem(key));
  const doc = tree.unpack(saved);
  const [, account, prompt, number] = oldKey.exec(key);
  const draft = { id: `${key}@${time}`, account, prompt, tab: navigator.locks ? lockOf(account, number ?? 0) : null, owner: null, time, order: doc.order, selected: doc.selected, next: doc.next, fields };
  const tx = store.write(db);
  if (!await tx.objectStore("drafts").get(draft.id)) store.put(tx, draft, doc.order.map((id) => tree.packNode(doc.nodes[id])), []); // else another tab has moved it
  await tx.done;
}
