// The figures of every run with their layer slider and captions, and the switches above them.

const CURVE_CAPTION = "How far the probe's belief in its first prediction moves when the subject is cut off. Drag to keep the samples whose own ΔP, averaged over these layers, lies there; click for a layer.";
const SCATTER_CAPTION = "Each sample at this layer. Shaded: the prediction flips. Dashed with its band: where one mechanism would put every sample, and 95 % of its noise. Drag to filter, click for a sample.";

function figures(app) {
  const two = app.runs.length > 1, charts = app.runs.map((run) => ({ run, curve: curveChart(run, app), scatter: scatterChart(run, app), slider: slider(app, run) }));
  for (const { run, curve, scatter, slider: control } of charts) {
    app.nodes.figures.append(element("section", { class: "of-run", "aria-label": `Figures of run ${run.number + 1}` },
      two ? element("h2", {}, `${run.number + 1} `, untrusted(run.model)) : "",
      control.node,
      element("figure", {}, element("div", { class: "frame" }, curve.node), legend(run), element("figcaption", {}, CURVE_CAPTION)),
      element("figure", {}, element("div", { class: "frame" }, scatter.node), marks(), element("figcaption", {}, SCATTER_CAPTION))));
  }
  app.nodes.figures.classList.toggle("two", two);
  return {
    draw(state, passing) {
      for (const { run, curve, scatter, slider: control } of charts) {
        control.sync(state);
        for (const entry of curve.node.closest("figure").querySelectorAll("[data-of]")) entry.hidden = state.hide.includes(entry.dataset.of);
        curve.draw(state);
        const kept = new Uint8Array(run.n);
        for (const row of passing) kept[row[run.number]] = 1;
        scatter.draw(state, kept);
      }
    },
  };
}

function slider(app, run) {
  const id = `layer-${run.number}`, output = element("output", { for: id });
  const input = element("input", { type: "range", id, min: 1, max: run.layers, step: 1, oninput: (event) => app.setLayer(run.number, Number(event.target.value)) });
  return {
    node: element("div", { class: "slider" }, element("label", { for: id }, "Layer"), input, output),
    sync(state) {
      input.value = state.layers[run.number];
      output.textContent = `${state.layers[run.number]} of ${run.layers}`;
    },
  };
}

function legend(run) {
  const entry = (sign, ...text) => element("span", {}, sign, " ", ...text);
  const entries = run.datasets.flatMap((dataset) => ["Q", "A"].map((pathway) => {
    const node = entry(swatch(dataset.color, pathway === "A" ? "6 3" : ""), `${pathway} `, untrusted(dataset.title));
    node.dataset.of = dataset.name;
    return node;
  }));
  entries.push(entry(element("i", { class: "hatched" }), "Q under one mechanism"), entry(swatch("var(--control)"), "pale: the same under neutral tokens"), entry(swatch("currentColor"), "the open sample"));
  return element("p", { class: "key" }, ...entries);
}

function marks() {
  const shape = (kind) => svg("svg", { width: 14, height: 12, "aria-hidden": "true" }, kind);
  const circle = (fill) => shape(svg("circle", { cx: 7, cy: 6, r: 4, fill, stroke: "currentColor", "stroke-width": 1.4 }));
  const triangle = shape(svg("path", { d: "M7,1L12,11L2,11Z", fill: "none", stroke: "currentColor", "stroke-width": 1.4 }));
  return element("p", { class: "key" }, element("span", {}, circle("currentColor"), " Q filled"), element("span", {}, circle("none"), " A hollow"),
    element("span", {}, circle("none"), " answered right"), element("span", {}, triangle, " answered wrong"));
}

function switchBar(app) {
  const buttons = [];
  const button = (text, isOn, change) => {
    const node = element("button", { type: "button", onclick: () => app.update({ ...change(app.state), page: 1 }, { push: true }) }, ...text);
    buttons.push([node, isOn]);
    return node;
  };
  const group = (name, ...inside) => element("div", { class: "switch", role: "group", "aria-label": name }, ...inside);
  const names = new Map(app.runs.flatMap((run) => run.datasets).map((dataset) => [dataset.name, dataset]));
  app.nodes.switches.append(
    group("Mode", ...["paper", "strict"].map((mode) => button([`${mode[0].toUpperCase()}${mode.slice(1)} mode`], (s) => s.mode === mode, () => ({ mode })))),
    group("Datasets", ...[...names.values()].map((dataset) => button([swatch(dataset.color), " ", untrusted(dataset.title)], (s) => !s.hide.includes(dataset.name),
      (s) => ({ hide: s.hide.includes(dataset.name) ? s.hide.filter((name) => name !== dataset.name) : [...s.hide, dataset.name] })))),
    group("Layers over the curves", button(["Nulls"], (s) => s.nulls, (s) => ({ nulls: !s.nulls })), button(["Intervals"], (s) => s.intervals, (s) => ({ intervals: !s.intervals }))));
  return { sync(state) { for (const [node, isOn] of buttons) node.setAttribute("aria-pressed", String(isOn(state))); } };
}
