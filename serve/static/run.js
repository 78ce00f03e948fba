// One generated text: the parts that the server sent, the panel that shows the text, and its speed.
import { markdown } from "./markdown.js";

const LEAST = 32; // minimum number of tokens for a comparison of two speeds
const NEAR = 0.05; // two speeds are called equal if they differ by less than this share, because a single run is not more exact
const ENDS = { stop: "ended by the model", length: "ended at the maximum number of tokens" };

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const quoted = (text) => `“${text.replaceAll("\n", "⏎")}”`;
const bytes = (token) => token.bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");

export const shownRate = (rate) => rate.toFixed(rate < 10 ? 1 : 0);

export class Run {
  // letter: "a" or "b"; length: the rule that ends drafts, "" for the server's controller; parent: the panel's parent.
  constructor(letter, length, parent) {
    Object.assign(this, { letter, length, text: "", tokens: 0, forwards: 0, lengths: [], drafted: [], accepted: [] });
    this.name = `${letter.toUpperCase()}: ${length || "the server’s controller"}`;
    this.speed = []; // tokens per second so far
    this.arrivals = []; // numbers of tokens and the seconds after which they arrived
    this.spans = []; // tokens that are not yet shown
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // keeps the bytes of an incomplete character
    this.end = ""; // the reason why the text ended
    this.whole = false; // whether the text is complete
    const panel = document.getElementById("panel-template").content.cloneNode(true).firstElementChild;
    for (const part of ["name", "stats", "tokens", "formatted", "detail"]) {
      this[`${part}Node`] = panel.querySelector(`.${part}`);
    }
    this.nameNode.textContent = this.name;
    const show = (event) => {
      const token = event.target.closest(".token");
      if (token) this.detailNode.textContent = token.dataset.detail;
    };
    this.tokensNode.addEventListener("pointerover", show);
    this.tokensNode.addEventListener("focusin", show);
    this.tokensNode.addEventListener("keydown", moveFocus);
    parent.append(panel);
    this.show();
  }

  start() {
    this.started = performance.now();
  }

  // Adds a part of the server's answer.
  take(choice) {
    this.text += choice.delta ? choice.delta.content || "" : choice.text;
    for (const round of choice.rounds || []) this.addRound(round);
    if (choice.rounds && choice.rounds.length) {
      this.arrivals.push({ tokens: this.tokens, seconds: (performance.now() - this.started) / 1000 });
      if (this.rate) this.speed.push({ x: this.decoding, y: this.rate });
    }
    if (!choice.finish_reason) return;
    this.whole = true;
    this.end = ENDS[choice.finish_reason] || choice.finish_reason;
    if (choice.finish_reason === "length") this.text = this.text.replace(/\uFFFD+$/, ""); // a character that was cut
  }

  finish(end) {
    this.end = end;
    this.show();
  }

  addRound(round) {
    const last = round.drafted.length - 1;
    const stopped = (token) => (token === round.drafted[last] ? round.stopped_by : "");
    const kept = round.drafted.filter((token) => token.accepted).slice(0, round.emitted.length);
    for (const token of kept) this.addToken(token, this.completed(token), "accepted", "drafted, accepted", stopped(token));
    for (const token of round.drafted.filter((token) => !token.accepted)) {
      const text = token.bytes ? `⟨${bytes(token)}⟩` : token.text.replaceAll("\n", "⏎");
      this.addToken(token, text, "rejected", "drafted, rejected", stopped(token));
    }
    for (const token of round.emitted.slice(kept.length)) {
      this.addToken(token, this.completed(token), "target", "token of the target", last < 0 ? round.stopped_by : "");
    }
    this.tokens += round.emitted.length;
    // Of the target. The first one reads the prompt. Without a draft each token takes a forward.
    this.forwards += round.drafted.length ? 1 : round.emitted.length;
    if (round.stopped_by === "prompt") return;
    this.lengths.push(round.drafted.length);
    for (const { position, accepted } of round.drafted) {
      this.drafted[position] = (this.drafted[position] || 0) + 1;
      this.accepted[position] = (this.accepted[position] || 0) + (accepted ? 1 : 0);
    }
  }

  // Returns the characters that a token completes; empty if the token ends within a character.
  completed(token) {
    const bytesOfToken = token.bytes ? Uint8Array.from(token.bytes) : new TextEncoder().encode(token.text);
    return this.decoder.decode(bytesOfToken, { stream: true });
  }

  addToken(token, text, kind, label, stoppedBy) {
    const span = document.createElement("span");
    span.className = text ? `token ${kind}` : `token ${kind} part`;
    span.textContent = text;
    span.dataset.detail = span.title = describe(token, text, label, stoppedBy);
    if (!text) span.setAttribute("aria-label", "part of a character");
    span.tabIndex = -1;
    this.spans.push(span);
  }

  // Seconds since the first token. The time until the first token depends on the prompt and does not count.
  get decoding() {
    return this.arrivals.length ? this.arrivals.at(-1).seconds - this.arrivals[0].seconds : 0;
  }

  // Tokens per second after the first token.
  get rate() {
    return this.decoding ? (this.tokens - this.arrivals[0].tokens) / this.decoding : 0;
  }

  // Seconds from the first token to token number `tokens`. The tokens of a round are spread evenly over its time.
  secondsTo(tokens) {
    const next = this.arrivals.findIndex((arrival) => arrival.tokens >= tokens);
    const [before, after] = [this.arrivals[Math.max(0, next - 1)], this.arrivals[next]];
    const share = after === before ? 0 : (tokens - before.tokens) / (after.tokens - before.tokens);
    return before.seconds + share * (after.seconds - before.seconds) - this.arrivals[0].seconds;
  }

  show() {
    this.tokensNode.append(...this.spans);
    this.spans = [];
    const first = this.tokensNode.firstElementChild;
    if (first && !this.tokensNode.querySelector('[tabindex="0"]')) first.tabIndex = 0;
    if (this.formattedNode.checkVisibility()) this.formattedNode.replaceChildren(markdown(this.text));
    const sum = (counts) => counts.reduce((total, count) => total + (count || 0), 0);
    const drafted = sum(this.drafted);
    const parts = [`${this.tokens} tokens`];
    if (this.rate) parts.push(`${shownRate(this.rate)} tokens/s`);
    if (this.forwards) parts.push(`${(this.tokens / this.forwards).toFixed(2)} tokens per target forward`);
    if (drafted) parts.push(`${percent(sum(this.accepted) / drafted)} of ${drafted} drafted tokens accepted`);
    if (this.end) parts.push(this.end);
    this.statsNode.textContent = this.tokens || this.end ? parts.join(" · ") : "waiting …";
  }
}

function describe(token, text, kind, stoppedBy) {
  const parts = [token.bytes ? `bytes ${bytes(token)}${text ? ` of ${quoted(text)}` : ", part of a character"}` : quoted(token.text)];
  parts[0] += ` ${kind}`;
  if (token.p !== undefined) {
    parts.push(`target p ${percent(token.p)}`, `draft q ${percent(token.q)}`);
    parts.push(`acceptance ${percent(Math.min(1, token.p / token.q))}`);
    if (token.predicted !== null) parts.push(`predicted ${percent(token.predicted)}`);
  }
  if (stoppedBy) parts.push(`draft ended by: ${stoppedBy}`);
  return parts.join("; ");
}

// The tokens are a single stop of the Tab key. Arrow keys, Home and End move between tokens.
function moveFocus(event) {
  const tokens = [...event.currentTarget.children];
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

// Returns a sentence that compares the speeds of two texts, over the number of tokens that both have.
export function verdict(a, b) {
  const tokens = Math.min(a.tokens, b.tokens);
  if (tokens < LEAST) return `Too short to compare speeds: one text has ${tokens} tokens, and ${LEAST} are needed.`;
  const ratio = b.secondsTo(tokens) / a.secondsTo(tokens);
  const over = a.tokens === b.tokens ? `${tokens} tokens each`
    : `over the first ${tokens} tokens; the texts have ${a.tokens} and ${b.tokens}`;
  if (Math.abs(ratio - 1) < NEAR) return `In this run, A and B are about equally fast: A is ${ratio.toFixed(2)} × as fast as B (${over}).`;
  return `In this run, A is ${ratio.toFixed(2)} × as fast as B (${over}).`;
}
