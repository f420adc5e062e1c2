// Draws the charts of a page: those of the operator's overview, with the figures that live.js gets, and those of usage. All charts
// of a page have one cursor and one zoom.
import { clock, dateTime, dayUTC, inUTC, minute, minuteUTC } from "./times.js";

const chartHeight = 210;
const mostDots = 31; // of a line: with more points it has none
const colors = ["--ink", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

const plots = new Map(); // by the id of the chart
const levels = { good: "--good", bad: "--bad" };
const wholePeriod = document.getElementById("plots-reset");
let shown; // the figures that are drawn
let zoom; // the part of the time that is shown; undefined if all is

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** readData returns the figures that a page contains, or undefined. */
function readData(page) {
  const element = page.getElementById("chart-data");
  return element ? JSON.parse(element.textContent) : undefined;
}

/** format shortens a value: 1.2k, 0.05. */
function format(value, unit) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : size >= 1e3 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(size < 1 ? 3 : 1)}`;
  return text + unit;
}

/** columns returns the data of a chart as uPlot takes it: the times, and the values of each line. */
function columns(data, chart) {
  const times = Array.from({ length: data.points }, (_, i) => data.begin + i * data.interval);
  return [times, ...chart.series.map((s) => s.values)];
}

/** known returns a value, or the last one of a series at which the cursor is not: of the last whole interval, if it has one. */
const known = (plot, value, series, index) => index === null ? plot.data[series].slice(0, -1).findLast((v) => v !== null) ?? plot.data[series].at(-1) : value;

/** timeAt returns the time at the cursor with what happened then. */
function timeAt(time) {
  if (time === null) return zoom ? "latest, zoomed" : "latest";
  const near = shown.marks.filter((m) => m.time >= time && m.time < time + shown.interval).map((m) => m.text);
  return [(shown.utc ? inUTC : dateTime)(1000 * time), ...near].join(" · ");
}

/** formatTick returns the label of a time of the axis. step is between the labels, in seconds. */
function formatTick(time, step) {
  const format = shown.utc ? (step < 86400 ? minuteUTC : dayUTC) : step < 60 ? clock : minute;
  return format(1000 * time);
}

/** drawMarks draws a line for each start and end of a backend. */
function drawMarks({ ctx, bbox, scales, valToPos }) {
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  for (const mark of shown.marks) {
    if (mark.time < scales.x.min || mark.time > scales.x.max) continue;
    const x = Math.round(valToPos(mark.time, "x", true));
    ctx.strokeStyle = variable(levels[mark.level]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** follow remembers what part of the time the user has chosen. */
function follow(plot, scale) {
  const times = plot.data[0], { min, max } = plot.scales.x;
  if (scale !== "x" || min === null) return;
  zoom = min > times[0] || max < times.at(-1) ? { min, max } : undefined;
  wholePeriod.disabled = !zoom;
}

function options(chart, width) {
  const axis = { stroke: () => variable("--soft"), grid: { stroke: () => variable("--line"), width: 1 }, ticks: { show: false } };
  const first = chart.series.length > 1 && chart.series[0].name === "all" ? 0 : 1; // the sum is in the color of the text
  return {
    width, height: chartHeight,
    ...(shown.utc && { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") }),
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    cursor: { sync: { key: "charts" } },
    hooks: { setScale: [follow], draw: [drawMarks] },
    axes: [
      { ...axis, space: 70, values: (_, ticks, axisIndex, space, step) => ticks.map((t) => formatTick(t, step)) },
      { ...axis, size: 64, values: (_, ticks) => ticks.map((v) => format(v, chart.unit)) },
    ],
    series: [{ label: "Time", value: (_, time) => timeAt(time) }, ...chart.series.map((s, i) => ({
      label: s.name, width: 1.5, spanGaps: false,
      points: { show: shown.utc || shown.points <= mostDots, size: 4 }, // an interval between others without requests has no line
      stroke: () => variable(colors[(i + first) % colors.length]),
      value: (plot, v, series, index) => format(known(plot, v, series, index), chart.unit),
    }))],
  };
}

/** draw creates the charts, or updates those whose lines have stayed the same. */
function draw(data) {
  shown = data;
  for (const chart of data.charts) {
    const box = document.getElementById(`plot-${chart.id}`);
    const names = chart.series.map((s) => s.name).join("\n");
    const drawn = plots.get(chart.id);
    if (drawn && drawn.names === names) {
      drawn.plot.setData(columns(data, chart), !zoom);
      if (zoom) drawn.plot.redraw();
      continue;
    }
    drawn?.plot.destroy();
    box.replaceChildren();
    const before = zoom;
    const plot = new uPlot(options(chart, box.clientWidth), columns(data, chart), box);
    plots.set(chart.id, { names, plot });
    if (before) plot.setScale("x", before);
  }
}

document.addEventListener("live", (event) => {
  const data = readData(event.detail);
  if (data) draw(data);
});

const resize = new ResizeObserver(() => {
  for (const { plot } of plots.values()) {
    const width = plot.root.parentElement.clientWidth;
    if (width > 0 && width !== plot.width) plot.setSize({ width, height: chartHeight });
  }
});
const redraw = () => { // the colors of a legend are those of the theme in which it was made
  for (const { plot } of plots.values()) plot.destroy();
  plots.clear();
  draw(shown);
};
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

wholePeriod.addEventListener("click", () => {
  for (const { plot } of plots.values()) plot.setScale("x", { min: plot.data[0][0], max: plot.data[0].at(-1) });
});

document.getElementById("plots-note").hidden = true;
document.getElementById("plots-help").hidden = false;
draw(readData(document));
resize.observe(document.querySelector(".plots"));
