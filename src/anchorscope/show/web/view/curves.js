// ΔP by layer of a run's groups, and the rectangle that is drawn with the pointer.

// Calls `done([x0, x1, y0, y1])` in pixels after a drag, `click(x, y)` where nothing was dragged.
function brushOn(node, { area, draw, done, click }) {
  let start = null;
  const place = (event) => {
    const box = node.getBoundingClientRect(), [left, top, right, bottom] = area();
    return [clamp(event.clientX - box.left, left, right), clamp(event.clientY - box.top, top, bottom)];
  };
  const corners = ([x, y]) => [Math.min(start[0], x), Math.max(start[0], x), Math.min(start[1], y), Math.max(start[1], y)];
  const dragged = ([x, y]) => Math.abs(x - start[0]) > 4 || Math.abs(y - start[1]) > 4;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = place(event);
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (start && dragged(place(event))) draw(corners(place(event)));
  });
  node.addEventListener("pointerup", (event) => {
    if (!start) return;
    const end = place(event);
    if (dragged(end)) done(corners(end));
    else { draw(null); click(end[0], end[1]); }
    start = null;
  });
  node.addEventListener("pointercancel", () => { start = null; draw(null); });
}

// A drag keeps samples by their own ΔP, a click chooses a layer.

const CURVE = { left: 44, right: 12, top: 10, bottom: 34, height: 300 };

function curveChart(run, app) {
  const node = svg("svg", { class: "chart", role: "img" }), chart = { node };
  let x, y, width = 0;
  const area = () => [CURVE.left, CURVE.top, width - CURVE.right, CURVE.height - CURVE.bottom];
  const rectangle = svg("rect", { class: "brush", visibility: "hidden" });

  chart.draw = (state) => {
    width = node.parentNode.clientWidth || 560;
    const [low, high] = spanOf(run, state, app.openOf(run));
    x = linear([1, run.layers], [CURVE.left + 6, width - CURVE.right - 6]);
    y = linear([low, high], [CURVE.height - CURVE.bottom, CURVE.top]);
    node.setAttribute("viewBox", `0 0 ${width} ${CURVE.height}`);
    node.setAttribute("height", CURVE.height);
    node.setAttribute("aria-label", `ΔP by layer of ${run.model}, ${state.mode} mode, layer ${state.layers[run.number]} marked`);
    node.replaceChildren(
      hatching(run), ...axes(run, x, y, width, [low, high]),
      ...(state.nulls ? nullParts(run, state, x, y) : []),
      ...run.curves[state.mode].filter((series) => !state.hide.includes(series.dataset)).flatMap((series) => curveParts(run, series, state, x, y)),
      ...openLine(run, state, app.openOf(run), x, y), cursor(x(state.layers[run.number])), rectangle);
    place(state.effect && state.effect[0] === run.number ? state.effect : null);
  };
  const place = (effect) => {
    if (!effect) return rectangle.setAttribute("visibility", "hidden");
    const [, from, to, low, high] = effect;
    box(rectangle, [x(from) - 4, x(to) + 4, y(high), y(low)]);
  };
  brushOn(node, {
    area,
    draw: (corners) => (corners ? box(rectangle, corners) : place(app.state.effect)),
    done: ([x0, x1, y0, y1]) => {
      const layer = (at) => clamp(Math.round(x.invert(at)), 1, run.layers);
      app.update({ effect: [run.number, layer(x0), layer(x1), rounded(y.invert(y1)), rounded(y.invert(y0))], page: 1 }, { push: true });
    },
    click: (at) => app.setLayer(run.number, clamp(Math.round(x.invert(at)), 1, run.layers)),
  });
  return chart;
}

function box(rectangle, [x0, x1, y0, y1]) {
  const values = { x: x0, y: y0, width: Math.max(1, x1 - x0), height: Math.max(1, y1 - y0), visibility: "visible" };
  for (const [name, value] of Object.entries(values)) rectangle.setAttribute(name, value);
}

const colorOf = (run, dataset, pathway) => run.datasets.find((each) => each.name === dataset)[pathway];

function spanOf(run, state, open) {
  const shown = (series) => !state.hide.includes(series.dataset);
  const values = [0];
  for (const series of run.curves[state.mode].filter(shown)) values.push(...series.value, ...(state.intervals ? [...series.low, ...series.high] : []));
  if (state.nulls) for (const series of run.nulls[state.mode].filter(shown)) values.push(...series.low, ...series.high);
  if (open >= 0 && run.read(open, state.mode))
    for (let k = 1; k <= run.layers; k++) values.push(run.deltaP(state.mode, open, k));
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  const low = Math.min(...known, -5), high = Math.max(...known, 5), room = 0.06 * (high - low);
  return [low - room, high + room];
}

function axes(run, x, y, width, [low, high]) {
  const bottom = CURVE.height - CURVE.bottom, parts = [];
  for (const value of ticks(low, high, 5)) {
    parts.push(svg("line", { class: value === 0 ? "zero" : "grid", x1: CURVE.left, x2: width - CURVE.right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { class: "tick", x: CURVE.left - 6, y: y(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  for (const value of ticks(1, run.layers, width < 420 ? 5 : 10).filter(Number.isInteger))
    if (value >= 1) parts.push(svg("text", { class: "tick", x: x(value), y: bottom + 15, "text-anchor": "middle" }, tickText(value)));
  parts.push(svg("text", { class: "label", x: (CURVE.left + width - CURVE.right) / 2, y: CURVE.height - 4, "text-anchor": "middle" }, "layer"));
  parts.push(svg("text", { class: "label", x: CURVE.left + 4, y: CURVE.top + 8 }, run.unit === "percent" ? "ΔP, percent" : "ΔP, points"));
  return parts;
}

function curveParts(run, series, state, x, y) {
  const color = colorOf(run, series.dataset, series.pathway), parts = [];
  if (state.intervals) parts.push(svg("path", { d: bandPath(series, x, y), fill: color, opacity: 0.16 }));
  parts.push(svg("path", { class: `curve ${series.pathway}`, d: linePath(series, x, y), stroke: color }));
  series.layer.forEach((layer, at) => {
    const alone = series.value[at] !== null && series.value[at - 1] == null && series.value[at + 1] == null;
    if (series.value[at] !== null && (series.n[at] < 10 || alone))
      parts.push(svg("circle", { class: "few", cx: x(layer), cy: y(series.value[at]), r: 2.6, stroke: color }));
  });
  return parts;
}

function hatching(run) {
  return svg("defs", {}, ...run.datasets.map((each) =>
    svg("pattern", { id: `hatch-${run.number}-${run.datasets.indexOf(each)}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: each.Q, "stroke-width": 1.4, opacity: 0.5 }))));
}

function nullParts(run, state, x, y) {
  const shown = (series) => !state.hide.includes(series.dataset);
  const number = (series) => run.datasets.findIndex((each) => each.name === series.dataset);
  return [
    ...run.nulls[state.mode].filter(shown).map((series) => svg("path", { d: bandPath(series, x, y), fill: `url(#hatch-${run.number}-${number(series)})` })),
    ...run.controls[state.mode].filter(shown).map((series) => svg("path", { class: `control ${series.pathway}`, d: linePath(series, x, y), stroke: colorOf(run, series.dataset, series.pathway) })),
  ];
}

function openLine(run, state, i, x, y) {
  if (i < 0 || !run.read(i, state.mode)) return [];
  const points = [];
  for (let k = 1; k <= run.layers; k++) {
    const value = run.deltaP(state.mode, i, k);
    if (Number.isFinite(value)) points.push([x(k), y(value)]);
  }
  return points.length ? [svg("path", { class: "mine", d: path(points) })] : [];
}

const cursor = (at) => svg("line", { class: "cursor", x1: at, x2: at, y1: CURVE.top, y2: CURVE.height - CURVE.bottom });
