// The live panel: reads /metrics every two seconds. Knows nothing of chats.

const PERIOD_MS = 2000;
const NUM_POINTS = 60;
const points = [];
let last = null;

/** Returns name -> value of samples without labels other than the model's; later series of a name add up. */
export function parseMetrics(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$/.exec(line);
    if (match) values[match[1]] = (values[match[1]] ?? 0) + Number(match[2]);
  }
  return values;
}

function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–";
}

function show(values, speed) {
  const rows = {
    Running: values["xllm:num_requests_running"],
    Waiting: values["xllm:num_requests_waiting"],
    "KV cache in use": percent(values["xllm:kv_cache_usage_perc"]),
    "Prefix cache hits": percent(values["xllm:prefix_cache_hits_total"] / values["xllm:prefix_cache_queries_total"]),
    Preemptions: values["xllm:num_preemptions_total"],
    "Tokens/s": speed === null ? "–" : speed.toFixed(1),
  };
  const nodes = Object.entries(rows).flatMap(([name, value]) => {
    const term = document.createElement("dt");
    const description = document.createElement("dd");
    term.textContent = name;
    description.textContent = value ?? "–";
    return [term, description];
  });
  document.getElementById("gauges").replaceChildren(...nodes);
}

function draw() {
  const highest = Math.max(1, ...points);
  const step = 120 / (NUM_POINTS - 1);
  const left = 120 - (points.length - 1) * step;
  const line = points.map((value, index) => `${(left + index * step).toFixed(1)},${(31 - (29 * value) / highest).toFixed(1)}`);
  document.querySelector("#speed polyline").setAttribute("points", line.join(" "));
}

async function refresh() {
  const status = document.getElementById("status");
  try {
    const response = await fetch("/metrics");
    const values = parseMetrics(await response.text());
    const now = { at: performance.now(), tokens: values["xllm:generation_tokens_total"] };
    const speed = last ? Math.max(0, (1000 * (now.tokens - last.tokens)) / (now.at - last.at)) : null;
    last = now;
    if (speed !== null) points.push(speed);
    if (points.length > NUM_POINTS) points.shift();
    show(values, speed);
    draw();
    const isUp = values["xllm:up"] === 1;
    status.textContent = isUp ? "serving" : "not healthy";
    status.className = `status ${isUp ? "good" : "bad"}`;
  } catch {
    status.textContent = "unreachable";
    status.className = "status bad";
  }
}

/** Refreshes now and then every two seconds, while the page is visible. */
export function watch() {
  refresh();
  setInterval(() => document.hidden || refresh(), PERIOD_MS);
}
