"use strict";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const HISTORY = 120; // readings of the queue
const READ_EVERY = 1000; // milliseconds between two of them
const state = { runs: [], queue: [], abort: null };

// ---------------------------------------------------------------- the server

async function showServed() {
  try {
    const [models, controller] = await Promise.all(
      ["/v1/models", "/v1/controllers"].map((path) => fetch(path).then((response) => response.json())));
    const name = controller.name === null ? controller.kind : controller.name;
    byId("served").textContent = `${models.data[0].id}, controller ${name}`;
  } catch {
    byId("served").textContent = "the server does not answer";
  }
}

async function readQueue() {
  try {
    const text = await (await fetch("/metrics")).text();
    const value = (name) => Number((text.match(new RegExp(`^specpilot:${name} (\\S+)$`, "m")) || [0, 0])[1]);
    state.queue.push({ running: value("num_requests_running"), waiting: value("num_requests_waiting") });
    state.queue = state.queue.slice(-HISTORY);
    drawQueue();
  } catch { /* the server is away; the next reading may find it */ }
}

// Calls onChunk with every chunk of a streamed completion.
async function complete(body, chat, signal, onChunk) {
  const response = await fetch(chat ? "/v1/chat/completions" : "/v1/completions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (waiting + value).split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const content = event.replace(/^data: /, "");
      if (content === "[DONE]") return;
      const chunk = JSON.parse(content);
      if (chunk.error) throw new Error(chunk.error.message);
      onChunk(chunk);
    }
  }
}

// ---------------------------------------------------------------- one run

function newPanel(run) {
  const panel = byId("panel-template").content.cloneNode(true).firstElementChild;
  panel.querySelector("h2").textContent = run.title;
  byId("panels").append(panel);
  const text = panel.querySelector(".text");
  const detail = panel.querySelector(".detail");
  const show = (event) => {
    const token = event.target.closest(".token");
    if (token) detail.textContent = token.dataset.detail;
  };
  text.addEventListener("pointerover", show);
  text.addEventListener("focusin", show);
  text.addEventListener("keydown", moveFocus);
  return { text, detail, stats: panel.querySelector(".stats") };
}

// Tokens are one stop of the Tab key; arrows, Home and End move between them.
function moveFocus(event) {
  const tokens = [...event.currentTarget.querySelectorAll(".token")];
  const place = tokens.indexOf(document.activeElement);
  const next = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0,
    End: tokens.length - 1 }[event.key];
  if (place < 0 || next === undefined) return;
  event.preventDefault();
  const target = tokens[Math.min(Math.max(next, 0), tokens.length - 1)];
  tokens[place].tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const quoted = (text) => `“${text.replaceAll("\n", "⏎")}”`;

function describe(token, kind, stoppedBy) {
  const parts = [`${quoted(token.text)} ${kind}`];
  if (token.p !== undefined) {
    parts.push(`target p ${percent(token.p)}`, `draft q ${percent(token.q)}`);
    parts.push(`acceptance ${percent(Math.min(1, token.p / token.q))}`);
    if (token.predicted !== null) parts.push(`predicted ${percent(token.predicted)}`);
  }
  if (stoppedBy) parts.push(`draft ended by: ${stoppedBy}`);
  return parts.join("; ");
}

function addToken(run, token, kind, label, stoppedBy) {
  const span = document.createElement("span");
  span.className = `token ${kind}`;
  span.textContent = kind === "rejected" ? token.text.replaceAll("\n", "⏎") : token.text;
  span.dataset.detail = span.title = describe(token, label, stoppedBy);
  span.tabIndex = run.panel.text.childElementCount ? -1 : 0;
  run.panel.text.append(span);
}

function addRound(run, round) {
  const accepted = round.drafted.filter((token) => token.accepted).slice(0, round.emitted.length);
  const last = round.drafted.length - 1;
  const stopped = (token) => (token === round.drafted[last] ? round.stopped_by : "");
  accepted.forEach((token) => addToken(run, token, "accepted", "drafted, accepted", stopped(token)));
  round.drafted.filter((token) => !token.accepted)
    .forEach((token) => addToken(run, token, "rejected", "drafted, rejected", stopped(token)));
  round.emitted.slice(accepted.length).forEach((token) => {
    const reason = round.drafted.length ? "" : round.stopped_by;
    addToken(run, token, "own", "the target’s own", reason);
  });
  run.tokens += round.emitted.length;
  if (round.stopped_by === "prompt") return;
  run.rounds += 1;
  run.lengths.push(round.drafted.length);
  round.drafted.forEach((token, position) => {
    run.drafted[position] = (run.drafted[position] || 0) + 1;
    run.accepted[position] = (run.accepted[position] || 0) + (token.accepted ? 1 : 0);
  });
}

function showStats(run) {
  const seconds = (performance.now() - run.started) / 1000;
  const sum = (counts) => counts.reduce((total, count) => total + (count || 0), 0);
  const drafted = sum(run.drafted);
  run.rate = run.tokens / seconds;
  run.speed.push({ x: seconds, y: run.rate });
  const parts = [`${run.tokens} tokens`, `${run.rate.toFixed(0)} tokens/s`];
  if (run.rounds) parts.push(`${((run.tokens - 1) / run.rounds).toFixed(2)} tokens per target forward`);
  if (drafted) parts.push(`${percent(sum(run.accepted) / drafted)} of ${drafted} drafted tokens accepted`);
  run.panel.stats.textContent = parts.join(" · ");
}

async function generate(run, settings, signal) {
  const speculation = { trace: true };
  if (run.length) speculation.length = run.length;
  const body = { ...settings.body, stream: true, speculation };
  run.started = performance.now();
  await complete(body, settings.chat, signal, (chunk) => {
    for (const choice of chunk.choices) {
      for (const round of choice.rounds || []) addRound(run, round);
      if (choice.rounds) showStats(run);
      if (choice.finish_reason) run.panel.detail.textContent = `finished: ${choice.finish_reason}`;
    }
    drawRuns();
  });
}

// ---------------------------------------------------------------- the form

function settingsOfForm() {
  const chat = byId("chat").checked;
  const prompt = byId("prompt").value;
  return {
    chat,
    body: {
      ...(chat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
      max_tokens: Number(byId("max-tokens").value),
      temperature: Number(byId("temperature").value),
      seed: Number(byId("seed").value),
    },
  };
}

function newRun(letter) {
  const length = byId(`length-${letter}`).value.trim();
  const run = { letter, length, title: `${letter.toUpperCase()}: ${length || "the server’s controller"}`, tokens: 0,
    rounds: 0, rate: 0, lengths: [], drafted: [], accepted: [], speed: [] };
  run.panel = newPanel(run);
  return run;
}

async function submit(event) {
  event.preventDefault();
  if (state.abort) return;
  byId("panels").replaceChildren();
  byId("error").hidden = true;
  state.abort = new AbortController();
  byId("run").disabled = true;
  byId("stop").disabled = false;
  state.runs = (byId("compare").checked ? ["a", "b"] : ["a"]).map(newRun);
  const settings = settingsOfForm();
  try {
    for (const run of state.runs) await generate(run, settings, state.abort.signal); // in turn: each alone
  } catch (error) {
    if (error.name !== "AbortError") {
      byId("error").textContent = error.message;
      byId("error").hidden = false;
    }
  } finally {
    state.abort = null;
    byId("run").disabled = false;
    byId("stop").disabled = true;
    drawRuns();
  }
}

// ---------------------------------------------------------------- charts

function element(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const AREA = { width: 320, height: 140, left: 34, right: 8, top: 18, bottom: 18 };

// An empty chart of 320 × 140 units with its axes, and functions from values to places in it.
function chart(id, mostX, mostY, label, unit) {
  const svg = byId(id);
  svg.setAttribute("viewBox", `0 0 ${AREA.width} ${AREA.height}`);
  svg.setAttribute("aria-label", label);
  svg.replaceChildren();
  const x = (value) => AREA.left + (value / (mostX || 1)) * (AREA.width - AREA.left - AREA.right);
  const y = (value) => AREA.height - AREA.bottom - (value / (mostY || 1)) * (AREA.height - AREA.top - AREA.bottom);
  for (const value of [0, mostY / 2, mostY]) {
    svg.append(element("line", { class: "axis", x1: AREA.left, x2: AREA.width - AREA.right, y1: y(value), y2: y(value) }));
    const shown = unit === "%" ? Math.round(100 * value) : Number(value.toPrecision(3));
    svg.append(element("text", { x: AREA.left - 4, y: y(value) + 4, "text-anchor": "end" }, shown));
  }
  return { svg, x, y };
}

function key(svg, labels) {
  labels.forEach(({ name, kind }, i) => {
    svg.append(element("text", { class: kind, x: AREA.left + i * 140, y: 11 }, name));
  });
}

const path = (points, x, y) => points.map((point, i) => `${i ? "L" : "M"}${x(point.x).toFixed(1)},${y(point.y).toFixed(1)}`).join("");
const shortName = (run) => `${run.letter.toUpperCase()}: ${run.length || "server’s"}`.slice(0, 22);

function drawRuns() {
  drawSpeed();
  drawPositions();
  drawLengths();
}

function drawSpeed() {
  const runs = state.runs.filter((run) => run.speed.length);
  const points = runs.flatMap((run) => run.speed);
  const label = runs.map((run) => `${shortName(run)} ${run.rate.toFixed(0)}`).join(", ") || "no run yet";
  const most = Math.max(1, ...points.map((point) => point.y));
  const seconds = Math.max(0.1, ...points.map((point) => point.x));
  const { svg, x, y } = chart("chart-speed", seconds, most, `Tokens per second: ${label}`);
  for (const run of runs) svg.append(element("path", { class: run.letter, d: path(run.speed, x, y) }));
  svg.append(element("text", { x: AREA.width - AREA.right, y: AREA.height - 4, "text-anchor": "end" }, `${seconds.toFixed(1)} s`));
  key(svg, runs.map((run) => ({ name: `${shortName(run)} ${run.rate.toFixed(0)}`, kind: run.letter })));
}

function drawPositions() {
  const runs = state.runs.filter((run) => run.drafted.length);
  const positions = Math.max(1, ...runs.map((run) => run.drafted.length));
  const { svg, x, y } = chart("chart-positions", positions, 1, "Share of drafted tokens accepted, by position", "%");
  runs.forEach((run, i) => {
    run.drafted.forEach((count, position) => {
      const width = 0.8 / runs.length;
      const share = (run.accepted[position] || 0) / count;
      const start = x(position + 0.1 + i * width);
      svg.append(element("rect", { class: run.letter, x: start, y: y(share), width: Math.max(1, x(width) - x(0)), height: y(0) - y(share) }));
    });
  });
  for (let position = 0; position < positions; position += Math.ceil(positions / 10)) {
    svg.append(element("text", { x: x(position + 0.5), y: AREA.height - 4, "text-anchor": "middle" }, position + 1));
  }
  key(svg, runs.map((run) => ({ name: shortName(run), kind: run.letter })));
}

function drawLengths() {
  const runs = state.runs.filter((run) => run.lengths.length);
  const rounds = Math.max(1, ...runs.map((run) => run.lengths.length));
  const most = Math.max(1, ...runs.flatMap((run) => run.lengths));
  const { svg, x, y } = chart("chart-lengths", rounds, most, "Drafted tokens of each round");
  for (const run of runs) {
    svg.append(element("path", { class: run.letter, d: path(run.lengths.map((length, i) => ({ x: i, y: length })), x, y) }));
  }
  svg.append(element("text", { x: AREA.width - AREA.right, y: AREA.height - 4, "text-anchor": "end" }, `${rounds} rounds`));
  key(svg, runs.map((run) => ({ name: shortName(run), kind: run.letter })));
}

function drawQueue() {
  const most = Math.max(1, ...state.queue.map((one) => Math.max(one.running, one.waiting)));
  const { svg, x, y } = chart("chart-queue", HISTORY - 1, most, "Requests running and waiting, over two minutes");
  const points = (name) => state.queue.map((one, i) => ({ x: i, y: one[name] }));
  svg.append(element("path", { class: "a", d: path(points("running"), x, y) }));
  svg.append(element("path", { class: "b", d: path(points("waiting"), x, y) }));
  const last = state.queue[state.queue.length - 1];
  key(svg, [{ name: `running ${last.running}`, kind: "a" }, { name: `waiting ${last.waiting}`, kind: "b" }]);
}

byId("form").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => state.abort && state.abort.abort());
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
showServed();
drawRuns();
readQueue();
setInterval(readQueue, READ_EVERY);
