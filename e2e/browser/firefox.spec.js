// A short journey in Firefox. Playwright needs a Firefox of its own, which Debian does not have: this one is driven by WebDriver
// BiDi.
import puppeteer from "puppeteer-core";
import { expect, test } from "./console.js";

const executablePath = process.env.FIREFOX;
test.skip(!executablePath, "Firefox is missing: install it, for example with apt-get install --no-install-recommends firefox-esr");

let browser;
test.beforeAll(async () => { browser = await puppeteer.launch({ browser: "firefox", executablePath }); });
test.afterAll(() => browser?.close());

test("in Firefox a user signs in, generates, and exports the document", async () => {
  const page = await browser.newPage();
  const goto = (path) => page.goto(new URL(path, process.env.CONSOLE).href);
  await goto("/sign-in");
  await page.type("input[name=email]", process.env.EMAIL);
  await page.type("input[name=password]", process.env.PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => location.pathname === "/dashboard");
  await goto("/workbench");
  await page.waitForSelector("#bench[data-ready]");
  await page.click("#prompt");
  await page.keyboard.type("Once upon a time");
  await page.$eval("#p-min_tokens", (el) => { el.value = "8"; el.dispatchEvent(new Event("input", { bubbles: true })); });
  await page.click("#generate");
  await page.waitForFunction(() => /completion tokens/.test(document.getElementById("progress").textContent), { timeout: 60_000 });
  const text = await page.$eval("#prompt", (el) => el.value);
  expect(text).toMatch(/^Once upon a time[^]/);
  const exported = await page.evaluate(async () => {
    const create = URL.createObjectURL;
    let file;
    URL.createObjectURL = (blob) => { file = blob; return create.call(URL, blob); };
    [...document.querySelectorAll("[data-export=document]")].at(-1).click(); // its panel is closed
    return file.text();
  });
  expect(exported).toContain("Once upon a time");
  expect(JSON.parse(exported).document.tree.nodes.length).toBeGreaterThan(1);
});
