// Times are shown in the reader's time zone with seconds, which the page says once, and in UTC on hover.
const parts = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const local = new Intl.DateTimeFormat("en-GB", parts);
const utc = new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: "UTC" });
const localMinute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const utcMinute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
const utcDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const localClock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const dateTime = (time) => local.format(new Date(time));
export const inUTC = (time) => `${utc.format(new Date(time))} UTC`;
export const minute = (time) => localMinute.format(new Date(time));
export const minuteUTC = (time) => utcMinute.format(time);
export const dayUTC = (time) => utcDay.format(time);
export const clock = (time) => localClock.format(time);

// zone says which time zone that is.
export function zone() {
  const { timeZone } = local.resolvedOptions();
  const offset = -new Date().getTimezoneOffset();
  const [hours, minutes] = [Math.floor(Math.abs(offset) / 60), Math.abs(offset) % 60];
  if (timeZone === "UTC") return "Times are in UTC.";
  return `Times are in your time zone, ${timeZone} (UTC${offset < 0 ? "−" : "+"}${hours}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""}); point at one for UTC.`;
}
