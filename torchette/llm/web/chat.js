// SPDX-License-Identifier: BSD-3-Clause
// The chat page: a conversation with a model. The user drops or chooses a file, or ?model=URL names it; the default is the URL
// in the page's data-model. worker.js runs the model in the browser, or talks to the page's own server.
const find = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
const messages = [];
let answer = null; // the element of the answer that continues
let opened = null; // the model's file or URL
let ready = false;

function say(text) {
  find("facts").textContent = text;
}

function show(role, text) {
  const item = document.createElement("li");
  item.className = role;
  item.textContent = text;
  find("messages").append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

function update() {
  find("question").disabled = !ready;
  find("send").disabled = !ready;
  find("send").textContent = answer ? "Stop" : "Send";
  find("clear").disabled = answer !== null || messages.length === 0;
  if (ready && !answer) find("question").focus();
}

function open(source, key) {
  ready = false;
  opened = source;
  say("Loading …");
  clear();
  worker.postMessage({ open: source, key });
}

function clear() {
  messages.length = 0;
  find("messages").replaceChildren();
  update();
}

function ask() {
  const text = find("question").value;
  if (!ready || text.trim() === "") return;
  find("question").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  answer = show("assistant", "");
  const options = { maxNewTokens: Math.max(1, Math.floor(Number(find("most").value) || 256)) };
  if (find("temperature").value !== "") options.temperature = Number(find("temperature").value);
  if (options.temperature !== 0) options.seed = Math.floor(Math.random() * 2 ** 53);
  worker.postMessage({ ask: messages, options });
  update();
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const inMemory = (bytes) => (bytes ? ` · ${megabytes(bytes)} of memory` : ""); // a server does not report it

worker.onmessage = ({ data }) => {
  if (data.progress) {
    const [bytes, of] = data.progress;
    say(`Loading ${megabytes(bytes)}${of ? ` of ${megabytes(of)}` : ""}`);
  } else if (data.ready) {
    ready = true;
    say(`${data.ready.maxContext} tokens of context${inMemory(data.ready.memory)}${data.ready.hasTemplate ? "" : " · the file has no chat template: the model continues your text"}`);
    document.body.dataset.ready = "";
  } else if (data.piece !== undefined) {
    answer.textContent += data.piece;
    answer.scrollIntoView({ block: "end" });
  } else if (data.end) {
    const { generated_tokens: count, inference_end_ms: end, first_token_ms: first, inference_start_ms: begin, forgotten, memory } = data.end;
    messages.splice(messages[0].role === "system" ? 1 : 0, forgotten);
    messages.push({ role: "assistant", content: answer.textContent });
    const rate = count > 1 && end > first ? ` · ${((1000 * (count - 1)) / (end - first)).toFixed(1)} tokens/s` : "";
    say(`${count} tokens · first after ${first ? Math.round(first - begin) : 0} ms${rate}${inMemory(memory)}`);
    answer = null;
  } else {
    if (answer) {
      messages.pop(); // the question can be asked again
      find("question").value ||= answer.previousSibling.textContent;
      answer.previousSibling.remove();
      answer.remove();
    }
    answer = null;
    say(`${data.code}: ${data.error}`);
    const key = data.code === "invalid_api_key" && prompt("The API key of this server");
    if (key) open(opened, key);
  }
  update();
};

find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (answer) worker.postMessage({ stop: true });
  else ask();
});
find("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!answer) ask();
});
find("clear").addEventListener("click", clear);
find("file").addEventListener("change", (event) => event.target.files[0] && open(event.target.files[0]));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0] && !answer) open(event.dataTransfer.files[0]);
});

const start = new URLSearchParams(location.search).get("model") ?? document.body.dataset.model;
if (start) open(new URL(start, location.href).href);
update();
