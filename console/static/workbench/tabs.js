// A tab has a number, so that two tabs do not replace each other's drafts. It holds a lock on its number until it is closed, also
// while it shows another page: see console.js, which finds the lock's name in the storage of the tab.
const lockKey = "basegate-workbench-tab";
const leavingKey = "basegate-workbench-leaving"; // stored while the tab goes from page to page, so a copy of the tab lacks it
const reloading = 30_000; // milliseconds for which a tab that is loaded again waits for the lock that it had, which a slow machine releases late

export const lockOf = (account, number) => `basegate-workbench-tab:${account}:${number}`;

// hold takes a lock until the page is left, and reports whether it could.
function hold(name, options) {
  return new Promise((resolve, reject) => {
    const held = (lock) => { resolve(Boolean(lock)); return lock && new Promise(() => {}); };
    navigator.locks.request(name, options, held).catch(reject);
  });
}

// takeTab returns the lock that this tab had before it was loaded again, or else that of the lowest number that no other tab has,
// and whether it is the earlier one. Browsers have locks on secure origins only: elsewhere, tab is null.
export async function takeTab(account) {
  if (!navigator.locks) return { tab: null, earlier: false };
  const stored = sessionStorage.getItem(lockKey);
  const again = sessionStorage.getItem(leavingKey) !== null;
  sessionStorage.removeItem(leavingKey);
  addEventListener("pagehide", () => { try { sessionStorage.setItem(leavingKey, ""); } catch { /* it waits for nothing then */ } });
  const options = again ? { signal: AbortSignal.timeout(reloading) } : { ifAvailable: true };
  if (stored?.startsWith(lockOf(account, "")) && await hold(stored, options).catch(() => false)) return { tab: stored, earlier: true };
  let number = 0;
  while (!await hold(lockOf(account, number), { ifAvailable: true })) number++;
  const tab = lockOf(account, number);
  try { sessionStorage.setItem(lockKey, tab); } catch { /* the number is another one after a reload */ }
  return { tab, earlier: false };
}

// openTabs returns the locks of the tabs that are open.
export const openTabs = async () => new Set((await navigator.locks?.query())?.held.map((lock) => lock.name));
