// The page: puts composer, parameters, turns and live panel together.

import { watch } from "./live.js";
import { answer } from "./stream.js";
import { AssistantTurn, userTurn } from "./turns.js";

const find = (id) => document.getElementById(id);
const messages = [];
let running = null;

/** Returns what the parameters say, as fields of a request. Throws when the tools are no JSON list. */
function parameters() {
  const given = new FormData(find("parameters"));
  const fields = {};
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if (given.get(name) !== "") fields[name] = Number(given.get(name));
  }
  if (given.get("thinking")) fields.chat_template_kwargs = { enable_thinking: given.get("thinking") === "on" };
  if (given.get("tools").trim()) {
    const tools = JSON.parse(given.get("tools"));
    if (!Array.isArray(tools)) throw new Error("Tools must be a JSON list.");
    if (tools.length) fields.tools = tools;
  }
  const system = given.get("system").trim();
  fields.messages = system ? [{ role: "system", content: system }, ...messages] : [...messages];
  return fields;
}

function append(node) {
  find("welcome").hidden = true;
  const box = find("messages");
  box.append(node);
  box.scrollTop = box.scrollHeight;
}

/** Keeps the end in view while the reader is there. */
function follow(change) {
  const box = find("messages");
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  change();
  if (isAtEnd) box.scrollTop = box.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  find("send").hidden = controller !== null;
  find("stop").hidden = controller === null;
}

async function send(text) {
  messages.push({ role: "user", content: text });
  append(userTurn(text));
  const turn = new AssistantTurn();
  append(turn.node);
  const controller = new AbortController();
  setRunning(controller);
  let error = "";
  try {
    for await (const news of answer(parameters(), controller.signal)) follow(() => turn.add(news));
  } catch (caught) {
    error = controller.signal.aborted ? "Stopped." : caught.message;
  }
  follow(() => turn.end(error));
  if (turn.content || turn.calls.length) messages.push(turn.message());
  else messages.pop();
  if (running === controller) setRunning(null);
  find("input").focus();
}

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = find("input").value.trim();
  if (!text || running) return;
  find("input").value = "";
  send(text);
});

find("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("composer").requestSubmit();
});

find("stop").addEventListener("click", () => running?.abort());

find("new-chat").addEventListener("click", () => {
  running?.abort();
  messages.length = 0;
  find("messages").replaceChildren(find("welcome"));
  find("welcome").hidden = false;
});

find("panel").addEventListener("click", () => {
  const isShown = find("main").classList.toggle("shows-panel");
  find("panel").textContent = isShown ? "Chat" : "Panel";
  find("panel").setAttribute("aria-expanded", isShown);
});

find("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
});

find("parameters").addEventListener("submit", (event) => event.preventDefault());

const { data } = await (await fetch("/v1/models")).json();
find("model").textContent = data[0].id;
document.title = `xLLM · ${data[0].id}`;
watch();
