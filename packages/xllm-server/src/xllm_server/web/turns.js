// Draws turns of a conversation. Knows nothing of the server. Text of models and users never becomes markup.

function element(kind, className, text = "") {
  const made = document.createElement(kind);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Puts `text` into `target`: fenced code becomes <pre>, the rest stays as it is. */
function showText(target, text) {
  target.replaceChildren();
  text.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    const trimmed = part.replace(/^\n+|\n+$/g, "");
    if (trimmed) target.append(index % 2 ? element("pre", "", trimmed) : trimmed);
  });
}

export function userTurn(text) {
  const turn = element("article", "turn user");
  turn.append(element("div", "who", "You"), element("div", "text", text));
  return turn;
}

/** The assistant's turn while it comes: `add` takes what `answer` yields. */
export class AssistantTurn {
  constructor() {
    this.node = element("article", "turn assistant");
    this.node.append(element("div", "who", "Assistant"));
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.numTokens = null;
    this.beganAt = performance.now();
    this.firstAt = null;
  }

  add(news) {
    if (!news.usage && !news.reason) this.firstAt ??= performance.now();
    if (news.reasoning) {
      this.reasoning += news.reasoning;
      this.reasoningNode ??= this.#openReasoning();
      this.reasoningNode.textContent = this.reasoning;
    }
    if (news.content) {
      this.content += news.content;
      this.textNode ??= this.#append(element("div", "text"));
      showText(this.textNode, this.content);
    }
    if (news.call) this.#addCall(news.call);
    if (news.reason) this.reason = news.reason;
    if (news.usage) this.numTokens = news.usage.completion_tokens;
  }

  /** The turn as a message for the next request. */
  message() {
    const message = { role: "assistant", content: this.content };
    if (this.calls.length) {
      message.tool_calls = this.calls.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
    }
    return message;
  }

  end(error) {
    const endedAt = performance.now();
    if (error) this.#append(element("div", "error", error));
    const facts = [];
    if (this.firstAt) facts.push(`first token ${Math.round(this.firstAt - this.beganAt)} ms`);
    if (this.numTokens) {
      facts.push(`${this.numTokens} tokens`);
      const seconds = (endedAt - this.firstAt) / 1000;
      if (this.numTokens > 1 && seconds > 0) facts.push(`${((this.numTokens - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (this.reason === "length") facts.push("cut at the token limit");
    else if (this.reason && !["stop", "tool_calls"].includes(this.reason)) facts.push(`ended by ${this.reason}`);
    this.#append(element("div", "facts", facts.join(" · ")));
  }

  #append(node) {
    this.node.append(node);
    return node;
  }

  #openReasoning() {
    const details = element("details", "reasoning");
    details.open = true;
    const text = element("div", "");
    details.append(element("summary", "", "Thinking"), text);
    this.node.append(details);
    return text;
  }

  #addCall({ index, id, name, arguments: text }) {
    let call = this.calls[index];
    if (!call) {
      call = this.calls[index] = { id, name, text: "", node: element("pre", "") };
      const block = element("div", "call");
      block.append(element("div", "name", `calls ${name}`), call.node);
      this.node.append(block);
    }
    call.text += text;
    call.node.textContent = call.text;
  }
}
