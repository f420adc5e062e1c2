// The operator's overview: draws the charts, with the figures that live.js gets.

const chartHeight = 210;
const colors = ["--ink", "--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

const plots = new Map(); // by the id of the chart
let shown; // the figures that are drawn

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** readData returns the figures that a page contains, or undefined. */
function readData(page) {
  const element = page.getElementById("overview-data");
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

function options(chart, width) {
  const axis = { stroke: () => variable("--soft"), grid: { stroke: () => variable("--line"), width: 1 }, ticks: { show: false } };
  const first = chart.series.length > 1 && chart.series[0].name === "all" ? 0 : 1; // the sum is in the color of the text
  return {
    width, height: chartHeight,
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((v) => format(v, "")) }],
    series: [{}, ...chart.series.map((s, i) => ({
      label: s.name, width: 1.5, points: { show: false }, spanGaps: false,
      stroke: () => variable(colors[(i + first) % colors.length]),
      value: (_, v) => format(v, chart.unit),
    }))],
  };
}

/** draw creates the charts, or updates those whose lines have stayed the same. */
function draw(data) {
  shown = data;
  for (const chart of data.charts) {
    const box = document.getElementById(`plot-${chart.id}`);
    const names = chart.series.map((s) => s.name).join("\n");
    const known = plots.get(chart.id);
    if (known && known.names === names) {
      known.plot.setData(columns(data, chart));
      continue;
    }
    known?.plot.destroy();
    box.replaceChildren();
    if (chart.series.length === 0) {
      box.textContent = "None in this period.";
      plots.delete(chart.id);
      continue;
    }
    plots.set(chart.id, { names, plot: new uPlot(options(chart, box.clientWidth), columns(data, chart), box) });
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

document.getElementById("plots-note").hidden = true;
draw(readData(document));
resize.observe(document.querySelector(".plots"));
