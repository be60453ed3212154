// The report's charts: curves by layer with a switch between views, a legend that hides curves,
// and the numbers of a layer under the pointer or the arrow keys.

const AREA = { left: 56, right: 10, top: 12, bottom: 42 };
const DIGITS = { points: 1, percent: 1, share: 3 };
const HEAT = [[178, 24, 43], [247, 247, 247], [33, 102, 172]]; // a fall, nothing, a rise

function axesOf(x, y, [low, high], [first, last], width, height, titles, zero) {
  const bottom = height - AREA.bottom, middle = (AREA.left + width - AREA.right) / 2;
  return [
    ...ticks(low, high, 6).flatMap((value) => [
      svg("line", { class: "grid", x1: AREA.left, x2: width - AREA.right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: AREA.left - 6, y: y(value) + 4, "text-anchor": "end" }, tickText(value))]),
    ...(zero === null || zero < low || zero > high ? [] : [svg("line", { class: "zero", x1: AREA.left, x2: width - AREA.right, y1: y(zero), y2: y(zero) })]),
    ...ticks(first, last, width < 420 ? 5 : 9).filter((value) => titles.x !== "Layer" || Number.isInteger(value)).map((value) =>
      svg("text", { class: "tick", x: x(value), y: bottom + 16, "text-anchor": "middle" }, tickText(value))),
    svg("text", { class: "label", x: middle, y: height - 6, "text-anchor": "middle" }, titles.x),
    svg("text", { class: "label", transform: `translate(13,${bottom / 2}) rotate(-90)`, "text-anchor": "middle" }, titles.y),
  ];
}

function hatch(id, color) {
  const look = { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return svg("pattern", look, svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: color, "stroke-width": 1.4, opacity: 0.5 }));
}

function chart(node) {
  const spec = JSON.parse(document.getElementById(`${node.id}-data`).textContent);
  const figure = node.parentElement, legend = figure.querySelector(".legend"), hidden = new Set();
  const buttons = [...figure.querySelectorAll(".switch button")], tip = element("div", { class: "tip", hidden: true });
  let view = spec.views[0], width = 0, x, y, shown = [], cursor, layer = null;

  function draw() {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(spec.views[at] === view)));
    width = node.clientWidth;
    if (!width) return; // folded away: drawn when it unfolds
    const height = width < 560 ? 300 : 390;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    node.replaceChildren(picture, tip);
    tip.hidden = true;
    if (spec.kind === "heads") heads(picture, height);
    else curves(picture, height);
  }

  function curves(picture, height) {
    const layers = [...view.nulls, ...view.curves].flatMap((series) => series.layer);
    const ends = layers.length ? [layers.reduce((a, b) => Math.min(a, b)), layers.reduce((a, b) => Math.max(a, b))] : [0, 1];
    x = linear(ends, [AREA.left + 6, width - AREA.right - 6]);
    y = linear(view.range, [height - AREA.bottom, AREA.top]);
    shown = view.curves.filter((series) => !hidden.has(series.label));
    const line = (series, kind) => svg("path", { class: `curve ${kind} ${series.dashed ? "A" : "Q"}`, "data-label": series.label, d: linePath(series, x, y), stroke: series.color });
    const dots = (series) => series.layer.filter((_, at) => series.dots[at]).map((k) =>
      svg("circle", { class: "few", cx: x(k), cy: y(series.value[series.layer.indexOf(k)]), r: 3, stroke: series.color }));
    cursor = svg("line", { class: "cursor", y1: AREA.top, y2: height - AREA.bottom, visibility: "hidden" });
    picture.append(
      svg("defs", {}, ...view.nulls.map((series, at) => hatch(`${node.id}-hatch-${at}`, series.color))),
      ...axesOf(x, y, view.range, ends, width, height, { x: spec.x, y: view.y }, spec.zero),
      ...(hidden.has("null") ? [] : view.nulls.map((series, at) => svg("path", { class: "null", d: bandPath(series, x, y), fill: `url(#${node.id}-hatch-${at})` }))),
      ...(hidden.has("control") ? [] : view.controls.map((series) => line(series, "control"))),
      ...shown.map((series) => svg("path", { class: "band", d: bandPath(series, x, y), fill: series.color })),
      ...shown.flatMap((series) => [line(series, ""), ...dots(series)]), cursor);
    const rule = (color, dashed) => element("i", { style: `border-top: 2px ${dashed ? "dashed" : "solid"} ${color}` });
    legend.replaceChildren(
      ...view.curves.map((series) => entry(series.label, rule(series.color, series.dashed), series.label)),
      ...(view.controls.length ? [entry("control", rule("var(--control)", false), "Pale: the same under neutral tokens")] : []),
      ...(view.nulls.length ? [entry("null", element("i", { class: "hatched" }), "Q under one mechanism")] : []));
  }

  function entry(key, sign, text) {
    const change = () => {
      if (!hidden.delete(key)) hidden.add(key);
      draw();
      [...legend.children].find((button) => button.dataset.key === key)?.focus();
    };
    return element("button", { type: "button", "data-key": key, "aria-pressed": String(!hidden.has(key)), onclick: change }, sign, ...visible(text));
  }

  // The numbers at a layer; of many curves only the one that is nearest to the pointer.
  function read(at, height) {
    const here = shown.map((series) => [series, series.layer.indexOf(at)]).filter(([series, i]) => i >= 0 && series.value[i] !== null);
    if (!here.length) return;
    const far = ([series, i]) => Math.abs(y(series.value[i]) - height);
    const named = height === null || here.length <= 4 ? here : [here.reduce((best, each) => (far(each) < far(best) ? each : best))];
    const text = ([series, i]) => {
      const [value, low, high] = ["value", "low", "high"].map((name) => number(series[name][i], DIGITS[spec.unit]));
      const interval = series.low[i] === null ? "" : ` (${low} to ${high})`;
      return element("div", {}, element("i", { style: `background: ${series.color}` }), ...visible(series.label), `: ${value}${spec.unit === "percent" ? " %" : ""}${interval}, n = ${series.n[i]}`);
    };
    layer = at;
    tip.replaceChildren(element("b", {}, `${spec.x} ${tickText(at)}`), ...named.map(text));
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(0, x(at) - tip.offsetWidth / 2), width - tip.offsetWidth)}px`;
    for (const [name, value] of Object.entries({ x1: x(at), x2: x(at), visibility: "visible" })) cursor.setAttribute(name, value);
  }

  function hide() {
    tip.hidden = true;
    cursor?.setAttribute("visibility", "hidden");
  }

  function heads(picture, height) {
    const cells = view.cells, blocks = cells.length, across = cells[0].length;
    x = linear([-0.5, across - 0.5], [AREA.left, width - AREA.right]);
    y = linear([0.5, blocks + 0.5], [height - AREA.bottom, AREA.top]);
    const color = (value) => {
      const [from, to] = value < 0 ? [HEAT[1], HEAT[0]] : [HEAT[1], HEAT[2]], share = Math.abs(value) / spec.reach;
      return `rgb(${from.map((part, at) => Math.round(part + share * (to[at] - part)))})`;
    };
    picture.append(...axesOf(x, y, [0.5, blocks + 0.5], [0, across - 1], width, height, { x: "Head", y: "Block" }, null));
    cells.forEach((row, block) => row.forEach((value, head) => {
      if (value === null) return;
      picture.append(svg("rect", { class: "head", x: x(head - 0.5), y: y(block + 1.5), width: x(1) - x(0), height: y(0) - y(1), fill: color(value) },
        svg("title", {}, `block ${block + 1}, head ${head}: ΔP ${number(value, 2)}`)));
    }));
    const scale = element("i", { class: "scale" });
    legend.replaceChildren(element("span", {}, `ΔP ${number(-spec.reach, 1)} `, scale, ` ${number(spec.reach, 1)}`));
  }

  const nearest = (place) => [...new Set(shown.flatMap((series) => series.layer))].reduce((best, k) => (Math.abs(x(k) - place) < Math.abs(x(best) - place) ? k : best), Infinity);
  buttons.forEach((button, at) => button.addEventListener("click", () => { view = spec.views[at]; draw(); }));
  if (spec.kind === "curves") {
    node.tabIndex = 0;
    node.addEventListener("pointermove", (event) => {
      const box = node.getBoundingClientRect();
      if (shown.length) read(nearest(event.clientX - box.left), event.clientY - box.top);
    });
    node.addEventListener("pointerleave", hide);
    node.addEventListener("blur", hide);
    node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !shown.length) return;
      const layers = [...new Set(shown.flatMap((series) => series.layer))].sort((a, b) => a - b), at = layers.indexOf(layer);
      read(layers[Math.min(layers.length - 1, Math.max(0, at + step))], null);
      event.preventDefault();
    });
  }
  new ResizeObserver(() => { if (node.clientWidth !== width) draw(); }).observe(node);
  draw();
}

document.querySelectorAll(".chart").forEach(chart);

// A link to a finding's meaning unfolds it.
window.addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  target?.closest("details")?.setAttribute("open", "");
  target?.scrollIntoView();
});
// What is folded away on the screen is unfolded on paper.
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
