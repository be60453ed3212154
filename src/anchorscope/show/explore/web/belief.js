// One sample's belief by layer, clean and under every intervention, over the bands of Q and A.

const BELIEF = { left: 36, right: 10, top: 8, bottom: 32, height: 230 };
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2"]; // so that colour is never the only sign

function beliefChart(app, run, i, width) {
  const { state } = app, x = linear([1, run.layers], [BELIEF.left + 4, width - BELIEF.right - 4]);
  const y = linear([0, 1], [BELIEF.height - BELIEF.bottom, BELIEF.top]), bottom = BELIEF.height - BELIEF.bottom;
  const parts = [0, 0.25, 0.5, 0.75, 1].flatMap((value) => [
    svg("line", { class: value === 0.5 ? "zero" : "grid", x1: BELIEF.left, x2: width - BELIEF.right, y1: y(value), y2: y(value) }),
    ...(value * 2 === Math.round(value * 2) ? [svg("text", { class: "tick", x: BELIEF.left - 5, y: y(value) + 4, "text-anchor": "end" }, tickText(value))] : [])]);
  for (const value of ticks(1, run.layers, 6).filter((at) => Number.isInteger(at) && at >= 1))
    parts.push(svg("text", { class: "tick", x: x(value), y: bottom + 14, "text-anchor": "middle" }, tickText(value)));
  parts.push(svg("text", { class: "label", x: (BELIEF.left + width) / 2, y: BELIEF.height - 4, "text-anchor": "middle" }, "layer"));
  parts.push(...["Q", "A"].map((name) => bandOf(run, state, i, name, x, y)));
  parts.push(...run.passes.filter((pass) => state.passes.includes(pass.name)).map((pass) => beliefLine(run, state.mode, i, pass, x, y)));
  const at = x(state.layers[run.number]);
  parts.push(svg("line", { class: "cursor", x1: at, x2: at, y1: BELIEF.top, y2: bottom }));
  return svg("svg", { class: "chart", role: "img", viewBox: `0 0 ${width} ${BELIEF.height}`, height: BELIEF.height, "aria-label": `P(wrong) by layer of this sample, ${state.mode} mode` }, ...parts);
}

// The middle half of the knocked-out P(wrong) of the group, layer by layer, with gaps.
function bandOf(run, state, i, name, x, y) {
  const group = name === "Q" ? Q : A, dataset = run.dataset[i], of = { layer: [], low: [], high: [] };
  for (let k = 1; k <= run.layers; k++) {
    const band = run.band(state.mode, dataset, k)[run.predicted(state.mode, i, k)][group];
    of.layer.push(k);
    of.low.push(band ? band[0] : null);
    of.high.push(band ? band[1] : null);
  }
  const color = run.datasets[dataset][name];
  return svg("path", { class: `band ${name}`, d: stretches(of, "low").map((part) => part.length > 1 ? bandOfPart(of, part, x, y) : bar(of, part[0], x, y)).join(""), fill: color, stroke: color });
}

const bandOfPart = (of, part, x, y) => path([
  ...part.map((at) => [x(of.layer[at]), y(of.low[at])]),
  ...part.toReversed().map((at) => [x(of.layer[at]), y(of.high[at])])]) + "Z";

const bar = (of, at, x, y) => path([[x(of.layer[at]) - 2, y(of.low[at])], [x(of.layer[at]) + 2, y(of.low[at])], [x(of.layer[at]) + 2, y(of.high[at])], [x(of.layer[at]) - 2, y(of.high[at])]]) + "Z";

function beliefLine(run, mode, i, pass, x, y) {
  const of = { layer: [], value: [] };
  for (let k = 1; k <= run.layers; k++) {
    const logit = run.logits[pass.name][mode][run.at(i, k)];
    of.layer.push(k);
    of.value.push(Number.isNaN(logit) ? null : sigmoid(logit));
  }
  return svg("path", { class: `belief ${pass.name === "clean" ? "clean" : ""}`, "data-pass": pass.name, d: linePath(of, x, y), stroke: pass.name === "clean" ? "currentColor" : pass.color, "stroke-dasharray": dashOf(run, pass) });
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
  const on = app.state.passes.includes(pass.name), clean = pass.name === "clean";
  const next = on ? app.state.passes.filter((name) => name !== pass.name) : [...app.state.passes, pass.name];
  const line = svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: clean ? "currentColor" : pass.color, "stroke-width": clean ? 2.4 : 2, "stroke-dasharray": dashOf(run, pass) });
  return element("button", {
    type: "button", "aria-pressed": String(on), "data-pass": pass.name, title: `pass ${pass.name}`,
    onclick: () => app.update({ passes: next }, { push: true, focus: `.legend [data-pass="${CSS.escape(pass.name)}"]` }),
  }, svg("svg", { width: 26, height: 8, "aria-hidden": "true" }, line), pass.label);
}
