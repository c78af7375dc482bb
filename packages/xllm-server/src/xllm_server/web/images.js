// The page of an image model: asks for images, shows how far they are, and shows them. Knows nothing of how they are drawn.

const find = (id) => document.getElementById(id);
let current = null;

/** Yields [name, content] of each server-sent event of `response`. */
async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pending += decoder.decode(value, { stream: true });
    const blocks = pending.split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      const name = block.match(/^event: (.*)$/m)?.[1] ?? "";
      yield [name, JSON.parse(block.match(/^data: (.*)$/m)[1])];
    }
  }
}

function asked() {
  const body = { prompt: find("prompt").value, n: Number(find("count").value) || 1, stream: true };
  if (find("negative").value) body.negative_prompt = find("negative").value;
  if (find("size").value) body.size = find("size").value;
  if (find("steps").value) body.num_inference_steps = Number(find("steps").value);
  if (find("seed").value) body.seed = Number(find("seed").value);
  return body;
}

function show(image, prompt) {
  const figure = document.createElement("figure");
  const picture = document.createElement("img");
  picture.src = `data:image/${image.output_format};base64,${image.b64_json}`;
  picture.alt = prompt;
  const caption = document.createElement("figcaption");
  caption.textContent = `${prompt} (${image.size}, seed ${image.seed})`;
  figure.append(picture, caption);
  find("gallery").prepend(figure);
}

function setBusy(isBusy) {
  find("draw").hidden = isBusy;
  find("stop").hidden = find("progress").hidden = !isBusy;
  find("progress").value = 0;
}

async function draw(body, signal) {
  const response = await fetch("/v1/images/generations", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const [name, content] of events(response)) {
    if (content.error) throw new Error(content.error.message);
    if (name.endsWith(".completed")) show(content, body.prompt);
    else if (content.position !== null) find("note").textContent = `${content.position} requests are in front of this one.`;
    else {
      find("progress").value = content.step / content.num_steps;
      find("note").textContent = `Step ${content.step} of ${content.num_steps}`;
    }
  }
}

find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = asked();
  current = new AbortController();
  setBusy(true);
  find("note").classList.remove("error");
  try {
    await draw(body, current.signal);
    find("note").textContent = "";
  } catch (error) {
    find("note").textContent = error.name === "AbortError" ? "Stopped." : error.message;
    find("note").classList.add("error");
  }
  setBusy(false);
});

find("stop").addEventListener("click", () => current?.abort());

const models = await (await fetch("/v1/models")).json();
find("model").textContent = models.data[0].id;
