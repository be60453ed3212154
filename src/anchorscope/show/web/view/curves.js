// ΔP by layer of a run's groups: a drag keeps samples by their own ΔP, a click chooses a layer.

const HEIGHT = 300;

// Calls `done([x0, x1, y0, y1])` in pixels after a drag, `click(x, y)` where nothing was dragged.
function brushOn(node, { draw, done, click }) {
  let start = null;
  const place = (event) => {
    const box = node.getBoundingClientRect();
    return [clamp(event.clientX - box.left, AREA.left, box.width - AREA.right), clamp(event.clientY - box.top, AREA.top, HEIGHT - AREA.bottom)];
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

function curveChart(run, app) {
  const node = svg("svg", { class: "chart", role: "img" }), rectangle = svg("rect", { class: "brush", visibility: "hidden" });
  let x, y;

  function draw(state) {
    const width = node.parentNode.clientWidth || 560, view = run.views[state.mode], open = openSeries(run, state, app.openOf(run));
    const shown = (group) => view[group].filter((series) => !state.hide.includes(series.dataset));
    const range = [Math.min(view.range[0], ...open.value.filter(Number.isFinite)), Math.max(view.range[1], ...open.value.filter(Number.isFinite))];
    const drawn = { curves: shown("curves"), nulls: state.nulls ? shown("nulls") : [], controls: state.nulls ? shown("controls") : [] };
    node.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    node.setAttribute("height", HEIGHT);
    node.setAttribute("aria-label", `ΔP by layer of ${run.model}, ${state.mode} mode, layer ${state.layers[run.number]} marked`);
    node.replaceChildren();
    ({ x, y } = drawCurves(node, drawn, { id: `run-${run.number}`, width, height: HEIGHT, range, titles: { x: "Layer", y: view.y }, zero: 0, intervals: state.intervals }));
    node.append(...(open.layer.length ? [svg("path", { class: "mine", d: linePath(open, x, y) })] : []), cursorAt(x(state.layers[run.number]), HEIGHT), rectangle);
    place(state.effect);
  }

  function place(effect) {
    if (!effect || effect[0] !== run.number) return rectangle.setAttribute("visibility", "hidden");
    const [, from, to, low, high] = effect;
    box([x(from) - 4, x(to) + 4, y(high), y(low)]);
  }

  function box([x0, x1, y0, y1]) {
    const values = { x: x0, y: y0, width: Math.max(1, x1 - x0), height: Math.max(1, y1 - y0), visibility: "visible" };
    for (const [name, value] of Object.entries(values)) rectangle.setAttribute(name, value);
  }

  const layer = (at) => clamp(Math.round(x.invert(at)), 1, run.layers);
  brushOn(node, {
    draw: (corners) => (corners ? box(corners) : place(app.state.effect)),
    done: ([x0, x1, y0, y1]) => app.update({ effect: [run.number, layer(x0), layer(x1), rounded(y.invert(y1)), rounded(y.invert(y0))], page: 1 }, { push: true }),
    click: (at) => app.setLayer(run.number, layer(at)),
  });
  return { node, draw };
}

// The open sample's own ΔP.
function openSeries(run, state, i) {
  const series = { layer: [], value: [] };
  if (i < 0 || !run.read(i, state.mode)) return series;
  for (let k = 1; k <= run.layers; k++) {
    const value = run.deltaP(state.mode, i, k);
    series.layer.push(k);
    series.value.push(Number.isFinite(value) ? value : null);
  }
  return series;
}
