// Draws each <div class="chart" data-src="..."> with uPlot. The address answers JSON: {"times": [ms, ...],
// "series": [{"name": "...", "values": [number or null, ...]}, ...]}; `data-unit` names the unit of the values.
"use strict";

// Each has a contrast of 3:1 and more to the light and to the dark page (WCAG 2.2, 1.4.11).
const COLOURS = ["#2f7fb8", "#c2651a", "#3f8f4f", "#9b4f96", "#d0454c", "#6b7280", "#8a6d00", "#00808a"];
const POINTS_MAX = 12; // of a short history, which may have a single point and no line
const RETRY_MS = 5000; // a new cluster has its first figures some seconds after the console's start

async function draw(element) {
  const answer = await fetch(element.dataset.src, { credentials: "same-origin" });
  if (!answer.ok) {
    element.textContent = "The chart has no data: status " + answer.status;
    return;
  }
  const facts = await answer.json();
  if (!facts.times.length) {
    element.textContent = "No data yet.";
    setTimeout(() => drawSafely(element), RETRY_MS);
    return;
  }
  const colour = getComputedStyle(element).color;
  const grid = getComputedStyle(document.documentElement).getPropertyValue("--pico-muted-border-color");
  const axis = { stroke: colour, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
  const clock = (_, times, _axis, _space, step) => times.map((seconds, at) => {
    const [day, time] = new Date(seconds * 1000).toISOString().slice(0, 16).split("T");
    if (step >= 86400) return day;
    return at === 0 || time === "00:00" ? time + "\n" + day : time;
  });
  const number = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const options = {
    width: element.clientWidth,
    height: 200,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1] } },
    axes: [{ ...axis, values: clock }, { ...axis, size: 60, values: (_, values) => values.map((value) => number.format(value)) }],
    series: [
      { label: "time (UTC)", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
      ...facts.series.map((one, at) => ({
        label: one.name + (element.dataset.unit ? ", " + element.dataset.unit : ""),
        stroke: COLOURS[at % COLOURS.length],
        width: 1.5,
        points: { show: one.values.filter((value) => value !== null).length <= POINTS_MAX, size: 5 },
        value: (_, value) => (value === null ? "" : value.toLocaleString("en", { maximumFractionDigits: 2 })),
      })),
    ],
  };
  element.textContent = "";
  const chart = new uPlot(options, [facts.times.map((ms) => ms / 1000), ...facts.series.map((one) => one.values)], element);
  new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: 200 })).observe(element);
}

function drawSafely(element) {
  draw(element).catch((error) => { element.textContent = "The chart cannot be drawn: " + error.message; });
}

function drawAll(root) {
  root.querySelectorAll(".chart[data-src]").forEach(drawSafely);
}

document.addEventListener("DOMContentLoaded", () => drawAll(document));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
document.addEventListener("htmx:load", (event) => { if (event.target !== document.body) drawAll(event.target); });
