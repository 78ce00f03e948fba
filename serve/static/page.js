// The form and the conversation.
import { drawQueue, drawRuns, HISTORY } from "./charts.js";
import { Run, verdict } from "./run.js";
import { complete, queue, served } from "./server.js";

const READ_EVERY = 1000; // milliseconds between two readings of the queue
const SHARE = 4; // by default, a text may have this part of a small context

const byId = (id) => document.getElementById(id);
// turns: {prompt, node, runs}; abort: aborts the running generation; readings: lengths of the queue over time.
const state = { turns: [], abort: null, readings: [], hasTemplate: true };

const chatting = () => state.hasTemplate && byId("chat").checked;
const runs = () => state.turns.flatMap((turn) => turn.runs);

async function start() {
  try {
    const { model, controller } = await served();
    byId("served").textContent = `${model.id}, controller ${controller.name === null ? controller.kind : controller.name}`;
    state.hasTemplate = model.chat_template;
    byId("chat").parentElement.hidden = !model.chat_template;
    const most = byId("max-tokens");
    if (model.max_model_len) most.value = Math.max(1, Math.min(most.value, Math.floor(model.max_model_len / SHARE)));
    showMode();
  } catch (error) {
    byId("served").textContent = error.message;
  }
}

async function readQueue() {
  try {
    state.readings = [...state.readings, await queue()].slice(-HISTORY);
    drawQueue(state.readings);
  } catch { /* the server does not answer; the next reading tries again */ }
}

// ---------------------------------------------------------------- what is sent

// Returns the body of a request that continues the conversation with a prompt.
function bodyOf(turns, prompt) {
  const texts = [...turns.flatMap((turn) => [turn.prompt, turn.runs[0].text]), prompt];
  const roles = ["user", "assistant"];
  const content = chatting() ? { messages: texts.map((text, i) => ({ role: roles[i % 2], content: text })) }
    : { prompt: texts.join("") };
  return {
    ...content,
    max_tokens: Number(byId("max-tokens").value),
    temperature: Number(byId("temperature").value),
    seed: Number(byId("seed").value),
    stream: true,
  };
}

async function generate(run, body, chat, signal) {
  const speculation = run.length ? { trace: true, length: run.length } : { trace: true };
  let frame = 0;
  const draw = () => {
    frame = 0;
    run.show();
    drawRuns(state.turns.at(-1)?.runs || []);
  };
  run.start();
  try {
    await complete({ ...body, speculation }, chat, signal, (choice) => {
      run.take(choice);
      frame ||= requestAnimationFrame(draw);
    });
  } catch (error) {
    run.finish(error.name === "AbortError" ? "stopped" : "interrupted");
    throw error;
  } finally {
    cancelAnimationFrame(frame);
    draw();
  }
}

// ---------------------------------------------------------------- turns

function newTurn(prompt) {
  const node = byId("turn-template").content.cloneNode(true).firstElementChild;
  node.querySelector(".prompt").textContent = prompt;
  byId("log").append(node);
  const letters = byId("compare").checked ? ["a", "b"] : ["a"];
  const newRuns = letters.map((letter) => new Run(letter, byId(`length-${letter}`).value.trim(), node.querySelector(".panels")));
  node.scrollIntoView({ block: "start" });
  return { prompt, node, runs: newRuns };
}

// Generates the answers to a prompt. Returns true if there is a text to continue from.
async function answer(prompt) {
  const turns = state.turns;
  const [body, chat] = [bodyOf(turns, prompt), chatting()];
  const turn = newTurn(prompt);
  turns.push(turn);
  state.abort = new AbortController();
  const { signal } = state.abort;
  showError("");
  showBusy(true);
  say("Generating");
  try {
    for (const run of turn.runs) await generate(run, body, chat, signal); // one after the other
    say(`Finished: ${turn.runs.map((run) => `${run.tokens} tokens`).join(" and ")}`);
  } catch (error) {
    say("Stopped");
    if (error.name !== "AbortError") showError(error.message);
  }
  if (state.turns !== turns) return true; // a new conversation has begun
  state.abort = null;
  for (const run of turn.runs.filter((unfinished) => !unfinished.end)) run.finish("not generated");
  if (turn.runs.length > 1) conclude(turn, signal.aborted);
  if (!turn.runs[0].tokens) {
    turn.node.remove();
    turns.pop();
  }
  showBusy(false);
  drawRuns(turns.at(-1)?.runs || []);
  return turn.runs[0].tokens > 0;
}

function conclude(turn, stopped) {
  const whole = turn.runs.every((run) => run.whole);
  const sentence = whole ? verdict(...turn.runs) : `${stopped ? "Stopped" : "Interrupted"} before both texts were complete, so there is no comparison.`;
  turn.node.querySelector(".verdict").textContent = `${sentence} The conversation continues with A’s text.`;
  if (whole) say(sentence);
}

async function submit(event) {
  event.preventDefault();
  if (state.abort) return;
  const box = byId("prompt");
  const prompt = box.value;
  box.value = "";
  if (!await answer(prompt) && !box.value) box.value = prompt;
}

const settingsAreValid = () => [...document.querySelectorAll(".settings input")].every((input) => input.reportValidity());

// Generates the last turn again, with the next seed.
async function regenerate() {
  const last = state.turns.pop();
  last.node.hidden = true;
  byId("seed").value = Number(byId("seed").value) + 1;
  if (await answer(last.prompt)) {
    last.node.remove();
    return;
  }
  last.node.hidden = false;
  state.turns.push(last);
  showBusy(false);
}

function newConversation() {
  state.abort?.abort();
  state.abort = null;
  state.turns = [];
  byId("log").replaceChildren();
  showError("");
  say("New conversation");
  showBusy(false);
  drawRuns([]);
  byId("prompt").focus();
}

// ---------------------------------------------------------------- what is shown

const say = (text) => { byId("status").textContent = text; };

function showError(text) {
  byId("error").textContent = text;
  byId("error").hidden = !text;
}

function showBusy(busy) {
  const hadFocus = document.activeElement === byId("stop");
  byId("run").disabled = busy;
  byId("stop").disabled = !busy;
  byId("again").disabled = busy || !state.turns.length;
  byId("new").disabled = !state.turns.length;
  if (hadFocus && !busy) byId("prompt").focus();
  showMode();
}

function showMode() {
  const chat = chatting();
  byId("mode").hidden = chat;
  byId("mode").textContent = `${state.hasTemplate ? "Without the chat template," : "This model has no chat template:"} the model `
    + "continues the text. Your next text is appended unchanged; an empty text continues as before.";
  byId("prompt-label").textContent = chat ? "Message" : "Text";
  byId("prompt").required = chat || !state.turns.length;
}

function showView() {
  document.body.dataset.view = document.querySelector('input[name="view"]:checked').value;
  for (const run of runs()) run.show();
}

byId("form").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => state.abort?.abort());
byId("again").addEventListener("click", () => settingsAreValid() && regenerate());
byId("new").addEventListener("click", newConversation);
byId("chat").addEventListener("change", showMode);
byId("views").addEventListener("change", showView);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
showView();
start();
readQueue();
setInterval(readQueue, READ_EVERY);
