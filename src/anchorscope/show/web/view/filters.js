// Which rows are kept, and the controls that say so.

const WIDE = 9999; // an open end of a range

// Whether a row passes every filter. `row` holds the sample's place in each run; with two runs a
// filter on verdict, class, pathway or type asks for a run in which it is so.
function keeps(runs, state) {
  const shown = new Set(runs[0].datasets.map((dataset) => dataset.name).filter((name) => !state.hide.includes(name)));
  const words = state.search.trim().toLowerCase();
  const some = (test) => (row) => runs.some((run, at) => test(run, row[at], state.layers[at]));
  const tests = [(row) => shown.has(runs[0].datasets[runs[0].dataset[row[0]]].name)];
  if (words) tests.push(some((run, i) => `${run.question[i]}\n${run.answer[i]}\n${run.id[i]}`.toLowerCase().includes(words)));
  if (state.verdict) tests.push(some((run, i) => run.verdicts[run.verdict[i]] === state.verdict));
  if (state.predicted) tests.push(some((run, i, k) => predictedName(run, state.mode, i, k) === state.predicted));
  for (const mode of ["paper", "strict"])
    if (state[mode]) tests.push(some((run, i, k) => run.pathway(mode, i, k) === state[mode]));
  if (state.type) tests.push(some((run, i) => run.types[run.type[i]] === state.type));
  if (state.points) tests.push(inPoints(runs, state));
  if (state.effect) tests.push(inEffect(runs, state));
  if (state.differ) tests.push(inCell(runs, state));
  return (row) => tests.every((test) => test(row));
}

const predictedName = (run, mode, i, k) => ["right", "wrong"][run.predicted(mode, i, k)] ?? "";

function inPoints(runs, { points: [number, a, b, c, d], mode, layers }) {
  const run = runs[number], k = layers[number], inside = (value, low, high) => value >= low && value <= high;
  return (row) => inside(run.clean(mode, row[number], k), a, b) && inside(run.cut(mode, row[number], k), c, d);
}

function inEffect(runs, { effect: [number, from, to, low, high], mode }) {
  const run = runs[number];
  return (row) => {
    const mean = meanEffect(run, mode, row[number], from, to);
    return mean >= low && mean <= high;
  };
}

function meanEffect(run, mode, i, from, to) {
  let sum = 0, count = 0;
  for (let k = Math.max(1, from); k <= Math.min(to, run.layers); k++) {
    sum += run.deltaP(mode, i, k);
    count++;
  }
  return sum / count;
}

// What two runs are compared by, and its value in one of them.
const COMPARED = {
  verdict: ["Verdict", ["right", "wrong", "abstain"], (run, state, i) => run.verdicts[run.verdict[i]]],
  predicted: ["Predicted class", ["right", "wrong"], (run, state, i, k) => predictedName(run, state.mode, i, k)],
  pathway: ["Pathway", ["Q", "A"], (run, state, i, k) => run.pathway(state.mode, i, k)],
};

function inCell(runs, state) {
  const [what, ...wanted] = state.differ.split(" "), value = COMPARED[what]?.[2];
  if (!value || runs.length < 2) return () => true;
  return (row) => runs.every((run, at) => value(run, state, row[at], state.layers[at]) === wanted[at]);
}

function comparedTables(app, rows) {
  const { runs, state } = app;
  return Object.entries(COMPARED).map(([what, [title, names, value]]) => {
    const counts = new Map();
    for (const row of rows) {
      const cell = runs.map((run, at) => value(run, state, row[at], state.layers[at])).join(" ");
      counts.set(cell, (counts.get(cell) ?? 0) + 1);
    }
    const cell = (a, b) => {
      const word = `${what} ${a} ${b}`, on = state.differ === word;
      return element("td", { class: a === b ? "same" : "other" }, element("button", {
        type: "button", "aria-pressed": String(on), "data-cell": word, "aria-label": `${title}: ${a} in run 1, ${b} in run 2`,
        onclick: () => app.update({ differ: on ? "" : word, page: 1 }, { push: true }),
      }, String(counts.get(`${a} ${b}`) ?? 0)));
    };
    return element("table", { class: "cross" },
      element("caption", {}, title),
      element("thead", {}, element("tr", {}, element("th", {}, "run 1 ↓ run 2 →"), ...names.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...names.map((a) => element("tr", {}, element("th", { scope: "row" }, a), ...names.map((b) => cell(a, b))))));
  });
}

function filterBar(app) {
  const { runs } = app, parts = [], controls = {};
  const change = (key) => (event) => app.update({ [key]: event.target.value, page: 1 }, { push: key !== "search" });
  controls.search = element("input", { type: "search", id: "search", placeholder: "Question, answer or id", oninput: change("search") });
  parts.push(label("Search", controls.search));
  const choices = {
    verdict: ["Verdict", runs[0].verdicts], predicted: ["Predicted", ["right", "wrong"]],
    paper: ["Paper pathway", ["Q", "A"]], strict: ["Strict pathway", ["Q", "A"]], type: ["Answer type", runs[0].types],
  };
  for (const [key, [title, names]] of Object.entries(choices)) {
    controls[key] = element("select", { id: `by-${key}`, onchange: change(key) }, element("option", { value: "" }, "any"),
      ...names.map((name) => element("option", { value: name }, name)));
    parts.push(label(title, controls[key]));
  }
  parts.push(element("details", { id: "numbers" }, element("summary", {}, "By numbers"), ...runs.map((run) => numberFields(app, run, controls))));
  const sync = (state) => {
    for (const key of ["search", ...Object.keys(choices)]) if (controls[key].value !== state[key]) controls[key].value = state[key];
    for (const fill of controls.ranges) fill(state);
  };
  return { parts, sync };
}

const label = (title, control) => element("label", {}, element("span", {}, title), control);

// The same ranges that a drag in a figure sets, for keys and for exact numbers.
function numberFields(app, run, controls) {
  const group = (key, fields) => {
    const inputs = fields.map((name) => element("input", { type: "number", step: "any", "aria-label": `${name}${app.runs.length > 1 ? `, run ${run.number + 1}` : ""}`, onchange: () => set() }));
    const set = () => {
      const ends = inputs.map((input, at) => (input.value === "" ? (at % 2 ? WIDE : -WIDE) : Number(input.value)));
      app.update({ [key]: inputs.every((input) => input.value === "") ? null : [run.number, ...ends], page: 1 }, { push: true });
    };
    (controls.ranges ??= []).push((state) => {
      const range = state[key] && state[key][0] === run.number ? state[key].slice(1) : [];
      inputs.forEach((input, at) => {
        const value = range[at] === undefined || Math.abs(range[at]) === WIDE ? "" : String(range[at]);
        if (input.value !== value) input.value = value;
      });
    });
    return inputs;
  };
  const [a, b, c, d] = group("points", ["clean logit from", "clean logit to", "knocked-out logit from", "knocked-out logit to"]);
  const [e, f, g, h] = group("effect", ["layer from", "layer to", "mean ΔP from", "mean ΔP to"]);
  const pair = (title, one, two) => element("span", { class: "pair" }, element("span", {}, title), one, " to ", two);
  return element("fieldset", {}, element("legend", {}, app.runs.length > 1 ? `Run ${run.number + 1}` : "Ranges"),
    pair("Clean logit", a, b), pair("Knocked-out logit", c, d), pair("Layers", e, f), pair("Mean ΔP over them", g, h));
}

function chipsOf(app) {
  const { state, runs } = app, chips = [], runName = (at) => (runs.length > 1 ? `run ${at + 1}: ` : "");
  const ends = (low, high) => (low <= -WIDE ? `up to ${tickText(high)}` : high >= WIDE ? `from ${tickText(low)}` : `${tickText(low)} to ${tickText(high)}`);
  const chip = (text, change) => chips.push(element("button", { type: "button", class: "chip", "aria-label": `Remove filter: ${text}`, onclick: () => app.update({ ...change, page: 1 }, { push: true }) }, ...visible(text), " ×"));
  if (state.points) chip(`${runName(state.points[0])}clean ${ends(state.points[1], state.points[2])}, knocked out ${ends(state.points[3], state.points[4])}`, { points: null });
  if (state.effect) chip(`${runName(state.effect[0])}ΔP ${ends(state.effect[3], state.effect[4])} over layers ${ends(state.effect[1], state.effect[2])}`, { effect: null });
  if (state.differ) chip(`${state.differ.split(" ").join(", ").replace(",", ":")}`, { differ: "" });
  for (const key of ["search", "verdict", "predicted", "paper", "strict", "type"])
    if (state[key]) chip(`${key}: ${state[key]}`, { [key]: "" });
  if (chips.length > 1) chips.push(element("button", { type: "button", class: "chip all", onclick: () => app.update({ points: null, effect: null, differ: "", search: "", verdict: "", predicted: "", paper: "", strict: "", type: "", page: 1 }, { push: true }) }, "Clear all"));
  return chips;
}
