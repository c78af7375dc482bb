// Streams a chat from the server. Knows nothing of the page.

/** Yields the JSON of each server-sent event of `response`, up to [DONE]. */
async function* events(response) {
  const decoder = new TextDecoder();
  let pending = "";
  for await (const bytes of chunks(response.body.getReader())) {
    pending += decoder.decode(bytes, { stream: true });
    const blocks = pending.split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function* chunks(reader) {
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

/**
 * Asks for an answer to `body` and yields what it brings:
 * {reasoning}, {content}, {call: {index, name, arguments}}, {reason}, {usage}. Throws an Error with the server's sentence.
 */
export async function* answer(body, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await sentence(response));
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) yield { usage: event.usage };
    for (const choice of event.choices) {
      const delta = choice.delta;
      if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
      if (delta.content) yield { content: delta.content };
      for (const call of delta.tool_calls ?? []) {
        yield { call: { index: call.index, id: call.id, name: call.function.name, arguments: call.function.arguments ?? "" } };
      }
      if (choice.finish_reason) yield { reason: choice.finish_reason };
    }
  }
}

async function sentence(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}
