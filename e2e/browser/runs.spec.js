import { checkPage, complete, expect, signIn, test } from "./console.js";

// makeKey makes a key for a run with the demo's key, and returns its secret.
async function makeKey(run, total) {
  const response = await fetch(new URL("/v1/keys", process.env.CONSOLE), {
    method: "POST",
    headers: { Authorization: `Bearer ${process.env.API_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ name: "eval", run, budget: { total } }),
  });
  expect(response.status).toBe(201);
  return (await response.json()).secret;
}

test("a run is watched, stopped, resumed and raised", async ({ page }) => {
  test.slow(); // two pages at many widths
  const secret = await makeKey("mmlu-7", 40);
  expect((await complete(secret, { ignore_eos: true })).status).toBe(200);
  await signIn(page);
  await page.getByRole("link", { name: "Usage", exact: true }).click();
  await page.getByRole("link", { name: "Runs" }).click();
  await checkPage(page, "runs");
  await page.getByText("Stop…").click();
  await expect(page.getByRole("button", { name: "Yes, stop mmlu-7" })).toBeVisible();
  await page.getByRole("link", { name: "mmlu-7" }).click();
  await expect(page.getByRole("img", { name: /Tokens used over time/ })).toBeVisible();
  await expect(page.getByText(/tokens are left\. Used up at this rate/)).toBeVisible();
  await checkPage(page, "run");

  await page.getByRole("button", { name: "Stop run" }).click();
  await expect(page.getByText("Run mmlu-7 stopped.")).toBeVisible();
  await expect.poll(async () => (await complete(secret, { ignore_eos: true })).status).toBe(401);
  await page.getByRole("button", { name: "Resume run" }).click();
  await expect.poll(async () => (await complete(secret, { ignore_eos: true })).status).toBe(200);
  await expect.poll(async () => (await complete(secret, { ignore_eos: true })).status).toBe(429);
  await page.reload();
  await expect(page.getByText("The budget is used up.")).toBeVisible();
  await page.getByLabel("Tokens more for each key").fill("1k");
  await page.getByRole("button", { name: "Raise" }).click();
  await expect(page.getByText("Run mmlu-7 raised.")).toBeVisible();
  await page.goto("/admin/runs");
  await page.getByRole("link", { name: "mmlu-7" }).click();
  await checkPage(page, "run-admin");
  await page.getByRole("button", { name: "Stop run" }).click();
  await page.getByRole("button", { name: "Resume run" }).click();
  await expect(page.getByText("Run mmlu-7 resumed.")).toBeVisible();
  await expect.poll(async () => (await complete(secret, { ignore_eos: true })).status).toBe(200);
});
