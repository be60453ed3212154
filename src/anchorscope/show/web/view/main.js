// What is shown, as a value: it is in the address, so that a link shows exactly this.

const TEXT_KEYS = ["mode", "sort", "search", "verdict", "predicted", "paper", "strict", "type", "differ", "open"];
const LIST_KEYS = ["hide", "passes"];

function defaults(runs) {
  const passes = ["clean", "knockout", "neutral", "answer-only"];
  return {
    mode: "strict", layers: runs.map((run) => run.start), hide: [], nulls: true, intervals: true,
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
  return state;
}

function range(text, runs) {
  const numbers = (text ?? "").split(",").map(Number);
  const whole = text && numbers.length === 5 && numbers.every(Number.isFinite);
  return whole && numbers[0] >= 0 && numbers[0] < runs ? numbers : null;
}

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const rounded = (value) => Math.round(value * 1000) / 1000;

// The page: reads the runs, keeps the state in the address, and draws what has changed.

function start() {
  const runs = [...document.querySelectorAll("script[id^=run-]")].map((node, number) => {
    const run = new Run(JSON.parse(node.textContent), number);
    node.remove();
    return run;
  });
  document.getElementById("message").hidden = true;
  document.getElementById("all").hidden = false;
  new App(runs).begin();
}

class App {
  constructor(runs) {
    this.runs = runs;
    this.rows = joinedRows(runs);
    this.base = defaults(runs);
    this.state = readState(location.hash.slice(1), this.base, runs);
    this.drawn = {};
    this.shown = this.rows;
    this.written = null;
  }

  begin() {
    const at = (id) => document.getElementById(id);
    this.nodes = Object.fromEntries(["switches", "figures", "filters", "chips", "compared", "table", "pages", "sample", "count"].map((id) => [id, at(id)]));
    document.querySelector(".lower").classList.toggle("two", this.runs.length > 1);
    heading(this);
    this.figures = figures(this);
    this.switches = switchBar(this);
    this.filters = filterBar(this);
    this.nodes.filters.append(...this.filters.parts);
    at("csv").addEventListener("click", () => download(csvOf(this, this.shown, columnsOf(this.runs, this.state)), "samples.csv"));
    window.addEventListener("hashchange", () => this.follow());
    window.addEventListener("popstate", () => this.follow());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    let width = document.body.clientWidth;
    new ResizeObserver(() => {
      if (width === document.body.clientWidth) return; // only its height has changed
      width = document.body.clientWidth;
      this.redraw();
    }).observe(document.body);
    this.render();
  }

  // The address was changed by a link, by hand, or by Back.
  follow() {
    if (location.hash.slice(1) === this.written) return;
    this.written = location.hash.slice(1);
    this.state = readState(this.written, this.base, this.runs);
    this.render();
  }

  update(change, { push = false, focus = null } = {}) {
    this.state = { ...this.state, ...change };
    this.written = writeState(this.state, this.base);
    history[push ? "pushState" : "replaceState"](null, "", `#${this.written}`);
    this.render();
    if (focus) document.querySelector(focus)?.focus();
  }

  // Moving the first run's layer takes the second one along to the same depth.
  setLayer(number, layer) {
    const layers = [...this.state.layers];
    layers[number] = layer;
    if (number === 0 && this.runs.length > 1) {
      const depth = (layer - 1) / Math.max(1, this.runs[0].layers - 1);
      layers[1] = clamp(Math.round(1 + depth * (this.runs[1].layers - 1)), 1, this.runs[1].layers);
    }
    this.update({ layers });
  }

  open(id, more = {}) {
    this.update({ open: id }, { push: true, ...more });
    if (id && !more.focus && matchMedia("(max-width: 1000px)").matches) this.nodes.sample.scrollIntoView({ block: "start" });
  }

  openOf(run) { return run.row.get(this.state.open) ?? -1; }

  redraw() {
    this.drawn = {};
    this.render();
  }

  // Runs a part when one of the values it depends on has changed since it was last drawn.
  part(name, depends, draw) {
    const key = JSON.stringify(depends);
    if (this.drawn[name] === key) return;
    this.drawn[name] = key;
    draw();
  }

  render() {
    const s = this.state, { nodes } = this;
    const filtering = [s.mode, s.layers, s.hide, s.search, s.verdict, s.predicted, s.paper, s.strict, s.type, s.points, s.effect, s.differ];
    const columns = columnsOf(this.runs, s);
    this.part("filter", filtering, () => { this.passing = this.rows.filter(keeps(this.runs, s)); });
    this.part("sort", [filtering, s.sort], () => { this.shown = sorted(this.passing, columns, s.sort); });
    const last = Math.max(1, Math.ceil(this.shown.length / PER_PAGE));
    if (s.page > last) s.page = last;
    this.switches.sync(s);
    this.filters.sync(s);
    this.part("figures", [filtering, s.nulls, s.intervals, s.open], () => this.figures.draw(s, this.passing));
    this.part("count", filtering, () => this.sayCount());
    this.part("chips", filtering, () => nodes.chips.replaceChildren(...chipsOf(this)));
    if (this.runs.length > 1) this.part("compared", filtering, () => nodes.compared.replaceChildren(...comparedTables(this, this.rows.filter(keeps(this.runs, { ...s, differ: "" })))));
    this.part("table", [filtering, s.sort, s.page, s.open], () => drawTable(this, nodes.table, this.shown, columns));
    this.part("pages", [filtering, s.sort, s.page], () => drawPages(this, nodes.pages, this.shown));
    this.part("sample", [filtering, s.sort, s.open, s.passes], () => drawSample(this, nodes.sample));
  }

  sayCount() {
    const all = this.rows.length, some = this.passing.length;
    this.nodes.count.textContent = some === all ? `${all}` : `${some} of ${all}`;
  }
}

function heading(app) {
  const { runs, rows } = app, title = document.getElementById("title"), facts = document.getElementById("facts");
  runs.forEach((run, at) => title.append(...(at ? [" and "] : []), untrusted(run.model)));
  const line = (...parts) => facts.append(element("li", {}, ...parts));
  if (runs.length > 1) return line(`Joined by question id: ${rows.length} questions in both runs, ${runs[0].n - rows.length} only in run 1, ${runs[1].n - rows.length} only in run 2.`);
  line(`${runs[0].n} questions, ${runs[0].layers} layers`);
  for (const found of runs[0].findings) {
    const title = runs[0].datasets.find((each) => each.name === found.dataset)?.title ?? found.dataset;
    line(untrusted(title), ": ", element("b", {}, ...visible(found.finding)), ` at layer ${found.layer}`, ...(found.why ? [": ", ...visible(found.why)] : []));
  }
}

try {
  start();
} catch (error) {
  document.getElementById("message").hidden = false;
  document.getElementById("message").textContent = `The samples could not be read: ${error.message}`;
  throw error;
}
