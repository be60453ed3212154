// The report's charts: a switch between views, a legend that hides curves, and the numbers of a
// layer under the pointer or the arrow keys.

const DIGITS = { points: 1, percent: 1, share: 3 };
const HEAT = [[178, 24, 43], [247, 247, 247], [33, 102, 172]]; // a fall, nothing, a rise

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
    shown = view.curves.filter((series) => !hidden.has(series.label));
    const drawn = { curves: shown, nulls: hidden.has("null") ? [] : view.nulls, controls: hidden.has("control") ? [] : view.controls };
    ({ x, y } = drawCurves(picture, drawn, { id: node.id, width, height, range: view.range, titles: { x: spec.x, y: view.y }, zero: spec.zero }));
    cursor = cursorAt(0, height);
    cursor.setAttribute("visibility", "hidden");
    picture.append(cursor);
    legend.replaceChildren(
      ...view.curves.map((series) => entry(series.label, swatch(series.color, series.dashed ? "6 3" : ""), series.label)),
      ...(view.controls.length ? [entry("control", swatch("var(--control)"), "Pale: the same under neutral tokens")] : []),
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
    picture.append(...axes(x, y, { range: [0.5, blocks + 0.5], ends: [0, across - 1], width, height, titles: { x: "Head", y: "Block" } }));
    cells.forEach((row, block) => row.forEach((value, head) => {
      if (value === null) return;
      picture.append(svg("rect", { class: "head", x: x(head - 0.5), y: y(block + 1.5), width: x(1) - x(0), height: y(0) - y(1), fill: color(value) },
        svg("title", {}, `block ${block + 1}, head ${head}: ΔP ${number(value, 2)}`)));
    }));
    legend.replaceChildren(element("span", {}, `ΔP ${number(-spec.reach, 1)} `, element("i", { class: "scale" }), ` ${number(spec.reach, 1)}`));
  }

  const layers = () => [...new Set(shown.flatMap((series) => series.layer))].sort((a, b) => a - b);
  buttons.forEach((button, at) => button.addEventListener("click", () => { view = spec.views[at]; draw(); }));
  if (spec.kind === "curves") {
    node.tabIndex = 0;
    node.addEventListener("pointermove", (event) => {
      const box = node.getBoundingClientRect(), place = event.clientX - box.left;
      if (shown.length) read(layers().reduce((best, k) => (Math.abs(x(k) - place) < Math.abs(x(best) - place) ? k : best)), event.clientY - box.top);
    });
    node.addEventListener("pointerleave", hide);
    node.addEventListener("blur", hide);
    node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], all = layers();
      if (!step || !all.length) return;
      read(all[Math.min(all.length - 1, Math.max(0, all.indexOf(layer) + step))], null);
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
