// Requests of the page to the server. This file does not touch the document. Paths are relative, because a proxy may add a prefix.

const AWAY = "the server does not answer; check that it is running";
const BROKEN = "the connection was lost during the answer; check that the server is running";

// Returns the descriptions of the model and of the controller.
export async function served() {
  const [models, controller] = await Promise.all(["v1/models", "v1/controllers"].map(async (path) => {
    const response = await reached(fetch(path), AWAY);
    if (!response.ok) throw new Error(await refusal(response));
    return response.json();
  }));
  return { model: models.data[0], controller };
}

// Returns the numbers of texts that are being decoded and that wait.
export async function queue() {
  const text = await (await reached(fetch("metrics"), AWAY)).text();
  const value = (name) => Number((text.match(new RegExp(`^specpilot:${name} (\\S+)$`, "m")) || [0, 0])[1]);
  return { running: value("num_requests_running"), waiting: value("num_requests_waiting") };
}

// Calls onChoice with every part of a streamed text.
export async function complete(body, chat, signal, onChoice) {
  const response = await reached(fetch(chat ? "v1/chat/completions" : "v1/completions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  }), AWAY);
  if (!response.ok) throw new Error(await refusal(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reached(reader.read(), BROKEN);
    if (done) throw new Error(BROKEN);
    const events = (waiting + value).split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const content = event.replace(/^data: /, "");
      if (content === "[DONE]") return;
      const chunk = JSON.parse(content);
      if (chunk.error) throw new Error(chunk.error.message);
      chunk.choices.forEach(onChoice);
    }
  }
}

// Returns the result of a request. Browsers report a missing server as "Failed to fetch" and the like; `message` replaces that.
async function reached(request, message) {
  try {
    return await request;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(message);
  }
}

async function refusal(response) {
  try {
    const body = await response.json();
    return body.error ? body.error.message : `the server is starting: ${body.reason}`;
  } catch {
    return `the server answered with status ${response.status} ${response.statusText}`;
  }
}
