// What is shown, as a value: it stands in the address, so that a link shows exactly this.

const TEXT_KEYS = ["mode", "sort", "search", "verdict", "predicted", "paper", "strict", "type", "differ", "scale", "open"];
const LIST_KEYS = ["hide", "passes"];

function defaults(runs) {
  const passes = ["clean", "knockout", "neutral", "answer-only"];
  return {
    mode: "strict", scale: "logit", layers: runs.map((run) => run.start), hide: [], nulls: true, intervals: true,
    sort: "", search: "", verdict: "", predicted: "", paper: "", strict: "", type: "", differ: "",
    points: null, effect: null, open: "", page: 1,
    passes: passes.filter((name) => runs.some((run) => run.logits[name])),
  };
}

// points: [run, clean from, to, knocked-out from, to]; effect: [run, layer from, to, ΔP from, to].
function writeState(state, base) {
  const words = new URLSearchParams();
  for (const key of TEXT_KEYS) if (state[key] !== base[key]) words.set(key, state[key]);
  for (const key of LIST_KEYS)
    if (state[key].join() !== base[key].join()) words.set(key, state[key].join(","));
  for (const key of ["nulls", "intervals"]) if (!state[key]) words.set(key, "0");
  words.set("layer", state.layers.join(","));
  for (const key of ["points", "effect"]) if (state[key]) words.set(key, state[key].join(","));
  if (state.page > 1) words.set("page", state.page);
  return words.toString();
}

function readState(text, base, runs) {
  const words = new URLSearchParams(text), state = { ...base };
  for (const key of TEXT_KEYS) if (words.has(key)) state[key] = words.get(key);
  for (const key of LIST_KEYS) if (words.has(key)) state[key] = words.get(key).split(",").filter(Boolean);
  for (const key of ["nulls", "intervals"]) state[key] = words.get(key) !== "0";
  const layers = (words.get("layer") ?? "").split(",").map(Number);
  state.layers = runs.map((run, at) => clamp(Math.round(layers[at]) || base.layers[at], 1, run.layers));
  for (const key of ["points", "effect"]) state[key] = range(words.get(key), runs.length);
  state.page = Math.max(1, Math.round(Number(words.get("page"))) || 1);
  if (!runs[0].modes.includes(state.mode)) state.mode = base.mode;
  if (!["logit", "probability"].includes(state.scale)) state.scale = base.scale;
  return state;
}

function range(text, runs) {
  const numbers = (text ?? "").split(",").map(Number);
  const whole = text && numbers.length === 5 && numbers.every(Number.isFinite);
  return whole && numbers[0] >= 0 && numbers[0] < runs ? numbers : null;
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const rounded = (value) => Math.round(value * 1000) / 1000;
