// The charts of a turn's runs and of the server's queue. A chart without data is hidden.
import { shownRate } from "./run.js";

const SVG = "http://www.w3.org/2000/svg";
export const HISTORY = 120; // readings of the queue
const AREA = { width: 320, height: 140, left: 40, right: 8, top: 18, bottom: 18 };

function element(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Returns a chart of 320 × 140 units with axes, and functions from values to places in the chart.
function chart(id, mostX, mostY, label, unit) {
  const svg = document.getElementById(id);
  svg.setAttribute("viewBox", `0 0 ${AREA.width} ${AREA.height}`);
  svg.setAttribute("aria-label", label);
  svg.replaceChildren();
  const x = (value) => AREA.left + (value / mostX) * (AREA.width - AREA.left - AREA.right);
  const y = (value) => AREA.height - AREA.bottom - (value / mostY) * (AREA.height - AREA.top - AREA.bottom);
  for (const value of [0, mostY / 2, mostY]) {
    svg.append(element("line", { class: "axis", x1: AREA.left, x2: AREA.width - AREA.right, y1: y(value), y2: y(value) }));
    const shown = unit === "%" ? Math.round(100 * value) : Number(value.toPrecision(3));
    svg.append(element("text", { x: AREA.left - 4, y: y(value) + 4, "text-anchor": "end" }, shown));
  }
  return { svg, x, y };
}

// Hides the chart if there is no data. Returns true if there is data.
function shown(id, things) {
  document.getElementById(id).closest("figure").hidden = things.length === 0;
  return things.length > 0;
}

function key(svg, labels) {
  labels.forEach(({ name, kind }, i) => {
    svg.append(element("text", { class: kind, x: AREA.left + i * 140, y: 11 }, name));
  });
}

const path = (points, x, y) => points.map((point, i) => `${i ? "L" : "M"}${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`).join("");
const nameOf = (run) => `${run.letter.toUpperCase()}: ${run.length || "server’s"}`.slice(0, 22);
const keysOf = (runs) => runs.map((run) => ({ name: nameOf(run), kind: run.letter }));

export function drawRuns(runs) {
  drawSpeed(runs.filter((run) => run.speed.length > 1));
  drawPositions(runs.filter((run) => run.drafted.length));
  drawLengths(runs.filter((run) => run.drafted.length));
}

function drawSpeed(runs) {
  if (!shown("chart-speed", runs)) return;
  const points = runs.flatMap((run) => run.speed);
  const seconds = Math.max(...points.map((point) => point.x));
  const names = runs.map((run) => ({ name: `${nameOf(run)} ${shownRate(run.rate)}`, kind: run.letter }));
  const label = `Tokens per second: ${names.map((label) => label.name).join(", ")}`;
  const { svg, x, y } = chart("chart-speed", seconds, Math.max(...points.map((point) => point.y)), label);
  for (const run of runs) svg.append(element("path", { class: run.letter, d: path(run.speed, x, y) }));
  svg.append(element("text", { x: AREA.width - AREA.right, y: AREA.height - 4, "text-anchor": "end" }, `${seconds.toFixed(1)} s`));
  key(svg, names);
}

function drawPositions(runs) {
  if (!shown("chart-positions", runs)) return;
  const positions = Math.max(...runs.map((run) => run.drafted.length));
  const { svg, x, y } = chart("chart-positions", positions, 1, "Share of drafted tokens accepted, by position", "%");
  const width = 0.8 / runs.length;
  runs.forEach((run, i) => {
    run.drafted.forEach((count, position) => {
      const share = run.accepted[position] / count;
      const start = x(position + 0.1 + i * width);
      svg.append(element("rect", { class: run.letter, x: start, y: y(share), width: x(width) - x(0), height: y(0) - y(share) }));
    });
  });
  for (let position = 0; position < positions; position += Math.ceil(positions / 10)) {
    svg.append(element("text", { x: x(position + 0.5), y: AREA.height - 4, "text-anchor": "middle" }, position + 1));
  }
  key(svg, keysOf(runs));
}

function drawLengths(runs) {
  if (!shown("chart-lengths", runs)) return;
  const rounds = Math.max(...runs.map((run) => run.lengths.length));
  const most = Math.max(...runs.flatMap((run) => run.lengths));
  const { svg, x, y } = chart("chart-lengths", rounds, most, "Drafted tokens of each round");
  for (const run of runs) {
    svg.append(element("path", { class: run.letter, d: path(run.lengths.map((length, i) => ({ x: i, y: length })), x, y) }));
  }
  svg.append(element("text", { x: AREA.width - AREA.right, y: AREA.height - 4, "text-anchor": "end" }, `${rounds} rounds`));
  key(svg, keysOf(runs));
}

// readings: numbers of running and waiting requests, one reading per second.
export function drawQueue(readings) {
  if (!shown("chart-queue", readings.filter((reading) => reading.running || reading.waiting))) return;
  const most = Math.max(...readings.map((reading) => Math.max(reading.running, reading.waiting)));
  const { svg, x, y } = chart("chart-queue", HISTORY - 1, most, "Requests running and waiting, over two minutes");
  const points = (name) => readings.map((reading, i) => ({ x: i, y: reading[name] }));
  svg.append(element("path", { class: "a", d: path(points("running"), x, y) }));
  svg.append(element("path", { class: "b", d: path(points("waiting"), x, y) }));
  const last = readings.at(-1);
  key(svg, [{ name: `running ${last.running}`, kind: "a" }, { name: `waiting ${last.waiting}`, kind: "b" }]);
}
