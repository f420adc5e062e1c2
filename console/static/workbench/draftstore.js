// Where the browser keeps drafts: an IndexedDB with a record for each draft, and one for each node of its tree, so that a change
// writes the nodes that it changes.
//
// A draft is {id, account, prompt, tab, owner, revision, time, order, selected, next, fields}: prompt is the id of the saved prompt
// or link that it is of, or "new"; tab is the lock of the tab that has it (see tabs.js), or null; owner is the page load that has
// it, and revision the number of its changes in that page load.
import { openDB } from "../vendor/idb/index.js";

const name = "basegate-drafts";

export const openStore = () => openDB(name, 1, {
  upgrade(db) {
    db.createObjectStore("drafts", { keyPath: "id" }).createIndex("prompt", ["account", "prompt"]);
    db.createObjectStore("nodes", { keyPath: ["draft", "id"] });
  },
  blocking: (current, blocked, event) => event.target.close(), // a later version of the page changes the stores
});

const stores = ["drafts", "nodes"];
export const write = (db) => db.transaction(stores, "readwrite");
const nodesOf = (id) => IDBKeyRange.bound([id], [id, []]);

const add = (request) => { request.catch(() => { /* the transaction fails, whose error is reported */ }); };

// put adds requests to a transaction that store a draft, the nodes that have changed, and the removal of others.
export function put(tx, draft, changed, removed) {
  putRecord(tx, draft);
  for (const node of changed) add(tx.objectStore("nodes").put({ draft: draft.id, ...node }));
  for (const id of removed) add(tx.objectStore("nodes").delete([draft.id, id]));
}

// putRecord adds a request that stores a draft whose nodes have not changed.
export const putRecord = (tx, draft) => add(tx.objectStore("drafts").put(draft));

// remove adds requests to a transaction that delete a draft.
export function remove(tx, id) {
  add(tx.objectStore("drafts").delete(id));
  add(tx.objectStore("nodes").delete(nodesOf(id)));
}

// nodes returns the nodes of a draft, in its order.
export async function nodes(db, { id, order }) {
  const found = new Map((await db.getAll("nodes", nodesOf(id))).map(({ draft, ...node }) => [node.id, node]));
  return order.filter((node) => found.has(node)).map((node) => found.get(node));
}

// draftsOf returns the drafts of a prompt, the newest first.
export async function draftsOf(tx, account, prompt) {
  const found = await tx.objectStore("drafts").index("prompt").getAll([account, prompt]);
  return found.sort((a, b) => b.time - a.time);
}

// clear deletes the drafts of all accounts.
export async function clear() {
  const db = await openStore();
  const tx = write(db);
  for (const store of stores) add(tx.objectStore(store).clear());
  await tx.done;
  db.close();
}
