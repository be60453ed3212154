// One sample: its facts, its tokens by role, and its belief by layer.

const ROLE = { question: 1, exactQuestion: 2, answer: 4, exactAnswer: 8 };

function drawSample(app, node) {
  const { state, runs } = app, places = runs.map((run) => app.openOf(run));
  if (!state.open || places.every((i) => i < 0)) {
    const hint = state.open ? "The sample that this link names is not in this page." : "Choose a sample in the table or in a scatter to see its tokens and its belief by layer.";
    return node.replaceChildren(element("p", { class: "box quiet" }, hint));
  }
  const first = runs.find((run, at) => places[at] >= 0), i = places[first.number];
  node.replaceChildren(
    element("div", { class: "row" }, element("h2", { id: "sample-title", tabindex: -1 }, "Sample"), element("span", { class: "push" }),
      stepButton(app, -1, "↑", "Previous sample"), stepButton(app, 1, "↓", "Next sample"),
      element("button", { type: "button", "aria-label": "Close the sample", onclick: () => app.open("") }, "×")),
    element("p", { class: "asked" }, untrusted(first.question[i])),
    facts([["id", untrusted(first.id[i])], ["dataset", untrusted(first.datasets[first.dataset[i]].title)],
      ["accepted", untrusted(first.accepted[i].slice(0, 5).join(" | "))], ["relation", untrusted(first.relation[i] || "–")],
      ["popularity", short(first.popularity[i])], ["subject found by", untrusted(first.finder[i])]]),
    element("div", { class: runs.length > 1 ? "both" : "one" }, ...runs.filter((run, at) => places[at] >= 0).map((run) =>
      element("div", {}, ...ofOneRun(app, run, places[run.number], columnWidth(node, runs.length))))));
}

const columnWidth = (node, runs) => Math.max(280, runs > 1 && node.clientWidth > 700 ? node.clientWidth / 2 - 18 : node.clientWidth - 2);

function stepButton(app, step, sign, name) {
  const own = app.openOf(app.runs[0]), at = app.shown.findIndex((row) => row[0] === own);
  const next = app.shown[at < 0 ? 0 : at + step], to = next && app.runs[0].id[next[0]];
  return element("button", { type: "button", "aria-label": name, "data-step": step, disabled: to === undefined, onclick: () => app.open(to, { focus: `[data-step="${step}"]` }) }, sign);
}

const facts = (pairs) => element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

function ofOneRun(app, run, i, width) {
  const { state } = app, k = state.layers[run.number], parts = [];
  if (app.runs.length > 1) parts.push(element("h3", { class: "of-run" }, `${run.number + 1} `, untrusted(run.model)));
  const verdict = run.verdicts[run.verdict[i]];
  parts.push(element("p", { class: "said" }, "answered ", element("b", {}, untrusted(run.answer[i] || "(nothing)")), " ", element("span", { class: `verdict ${verdict}` }, verdict)));
  parts.push(...(run.no_tokens ? characterParts(run, i) : tokenParts(run, i)));
  if (!run.read(i, state.mode)) {
    parts.push(element("p", { class: "box" }, "No probe read this sample: the model abstained, or no exact tokens were found."));
    return parts;
  }
  parts.push(element("h4", {}, `P(wrong) by layer, ${state.mode} mode`), beliefChart(app, run, i, width), passSwitches(app, run));
  parts.push(element("p", { class: "quiet" },
    `At layer ${k}: P(wrong) ${number(sigmoid(run.clean(state.mode, i, k)), 2)} clean, ${number(sigmoid(run.cut(state.mode, i, k)), 2)} knocked out; pathway ${run.pathway("paper", i, k) || "–"} in paper mode, ${run.pathway("strict", i, k) || "–"} in strict mode. `
    + "Bands: the middle half of Q and of A of this dataset under the knockout, among samples with the same predicted class at that layer; none below 10 samples."));
  return parts;
}

function tokenParts(run, i) {
  const start = run.tokenStart[i], stop = run.tokenStart[i + 1], shared = run.shared[run.datasets[run.dataset[i]].name];
  const own = [], cutsQuestion = cutBit(run);
  for (let at = start; at < stop; at++) own.push(token(run, run.tokens[at], run.roles[at], shared.length + at - start, cutsQuestion));
  const parts = [];
  if (shared.length) parts.push(element("details", { class: "shared" },
    element("summary", {}, `Worked examples before the question, the same for all (${shared.length} tokens)`),
    element("p", { class: "tokens" }, ...shared.map((id, at) => token(run, id, 0, at, 0)))));
  parts.push(element("p", { class: "tokens", dir: "ltr" }, ...own), roleLegend(cutsQuestion));
  return parts;
}

// Which role the run's knockout cuts: the exact tokens or all of the question. Drawn tokens
// (neutral) are not stored, so they cannot be marked.
const cutBit = (run) => ({ "the exact question tokens": ROLE.exactQuestion, "all question tokens": ROLE.question }[run.knocked_out] ?? 0);

function token(run, id, role, position, cutBits) {
  const text = run.vocabulary[id] ?? "", names = [], words = [];
  if (role & ROLE.exactQuestion) { names.push("exact-question"); words.push("exact question"); }
  else if (role & ROLE.question) { names.push("question"); words.push("question"); }
  if (role & ROLE.exactAnswer) { names.push("exact-answer"); words.push("exact answer"); }
  else if (role & ROLE.answer) { names.push("answer"); words.push("answer"); }
  if (role & cutBits) { names.push("cut"); words.push("knocked out"); }
  const about = [`token ${position}`, `id ${id}`, ...words, ...(text.includes("\ufffd") ? ["part of a character"] : [])].join(", ");
  const node = element("span", { class: ["token", ...names].join(" "), title: about }, ...visible(text));
  if (text.endsWith("\n")) node.append("\n");
  return node;
}

function roleLegend(cutBits) {
  const entry = (name, text) => element("span", {}, element("span", { class: `token ${name}` }, "Ab"), ` ${text}`);
  return element("p", { class: "roles quiet" }, entry("question", "question"), entry(cutBits === ROLE.exactQuestion ? "exact-question cut" : "exact-question", cutBits === ROLE.exactQuestion ? "exact question, knocked out" : "exact question"),
    ...(cutBits === ROLE.question ? [entry("question cut", "knocked out")] : []), entry("answer", "answer"), entry("exact-answer", "exact answer; its last token is read"));
}

// Without a tokenizer: the characters of the spans, as samples.parquet has them.
function characterParts(run, i) {
  const marked = (text, spans, name) => {
    const nodes = [], letters = Array.from(text); // Python counts code points
    let at = 0;
    for (const [from, to] of spans.toSorted((a, b) => a[0] - b[0])) {
      if (from < at) continue;
      nodes.push(...visible(letters.slice(at, from).join("")), element("span", { class: `token ${name}` }, ...visible(letters.slice(from, to).join(""))));
      at = to;
    }
    return element("bdi", { dir: "auto" }, ...nodes, ...visible(letters.slice(at).join("")));
  };
  const cut = cutBit(run) === ROLE.exactQuestion ? "exact-question cut" : "exact-question", span = run.answer_span[i];
  return [
    element("p", { class: "tokens characters" }, marked(run.question[i], run.spans[i], cut), "\n", marked(run.answer[i], span ? [span] : [], "exact-answer")),
    roleLegend(cutBit(run)),
    element("p", { class: "quiet note" }, "Characters instead of tokens, and no prompt: ", ...visible(run.no_tokens), "."),
  ];
}

// One sample's belief by layer, clean and under every intervention, over the bands of Q and A.

const BELIEF = 230; // pixels of height
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2"]; // so that colour is never the only sign

function beliefChart(app, run, i, width) {
  const { state } = app, ends = [1, run.layers], range = [0, 1];
  const x = linear(ends, [AREA.left + 6, width - AREA.right - 6]), y = linear(range, [BELIEF - AREA.bottom, AREA.top]);
  const parts = axes(x, y, { range, ends, width, height: BELIEF, titles: { x: "Layer", y: "P(wrong)" }, zero: 0.5 });
  parts.push(...["Q", "A"].map((name) => bandOf(run, state, i, name, x, y)));
  parts.push(...run.passes.filter((pass) => state.passes.includes(pass.name)).map((pass) => beliefLine(run, state.mode, i, pass, x, y)));
  parts.push(cursorAt(x(state.layers[run.number]), BELIEF));
  return svg("svg", { class: "chart", role: "img", viewBox: `0 0 ${width} ${BELIEF}`, height: BELIEF, "aria-label": `P(wrong) by layer of this sample, ${state.mode} mode` }, ...parts);
}

// The middle half of the knocked-out P(wrong) of the group, layer by layer, with gaps.
function bandOf(run, state, i, name, x, y) {
  const dataset = run.dataset[i], series = { layer: [], low: [], high: [] };
  for (let k = 1; k <= run.layers; k++) {
    const band = run.bands[dataset][state.mode][k - 1][run.predicted(state.mode, i, k)][name];
    series.layer.push(k);
    series.low.push(band ? band[0] : null);
    series.high.push(band ? band[1] : null);
  }
  const { color } = run.datasets[dataset];
  return svg("path", { class: `band ${name}`, d: bandPath(series, x, y), fill: color, stroke: color });
}

function beliefLine(run, mode, i, pass, x, y) {
  const series = { layer: [], value: [] };
  for (let k = 1; k <= run.layers; k++) {
    const logit = run.logits[pass.name][mode][run.at(i, k)];
    series.layer.push(k);
    series.value.push(Number.isNaN(logit) ? null : sigmoid(logit));
  }
  return svg("path", { class: `belief ${pass.name === "clean" ? "clean" : ""}`, "data-pass": pass.name, d: linePath(series, x, y), stroke: pass.name === "clean" ? "currentColor" : pass.color, "stroke-dasharray": dashOf(run, pass) });
}

function dashOf(run, pass) {
  const at = run.passes.indexOf(pass);
  return at < 2 ? "" : DASHES[1 + (at % (DASHES.length - 1))];
}

// Every pass as a switch; it is the legend too. What only some runs make is folded away.
function passSwitches(app, run) {
  const further = run.passes.filter((pass) => pass.further), on = further.some((pass) => app.state.passes.includes(pass.name));
  const more = element("details", { open: on || app.showFurther, ontoggle: (event) => { app.showFurther = event.target.open; } },
    element("summary", {}, `${further.length} more interventions`), ...further.map((pass) => passSwitch(app, run, pass)));
  return element("div", { class: "legend", role: "group", "aria-label": "Interventions shown" },
    ...run.passes.filter((pass) => !pass.further).map((pass) => passSwitch(app, run, pass)), further.length ? more : "");
}

function passSwitch(app, run, pass) {
  const on = app.state.passes.includes(pass.name);
  const next = on ? app.state.passes.filter((name) => name !== pass.name) : [...app.state.passes, pass.name];
  return element("button", {
    type: "button", "aria-pressed": String(on), "data-pass": pass.name, title: `pass ${pass.name}`,
    onclick: () => app.update({ passes: next }, { push: true, focus: `.legend [data-pass="${CSS.escape(pass.name)}"]` }),
  }, swatch(pass.name === "clean" ? "currentColor" : pass.color, dashOf(run, pass)), pass.label);
}
