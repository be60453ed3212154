// Curves by layer with bands, nulls and pale controls, for the report and the page of samples.

const AREA = { left: 54, right: 12, top: 12, bottom: 40 };

function linear([low, high], [from, to]) {
  const scale = (value) => from + (value - low) / (high - low || 1) * (to - from);
  scale.invert = (place) => low + (place - from) / (to - from || 1) * (high - low);
  return scale;
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= rough) ?? rough;
  const out = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) out.push(at * step);
  return out;
}

const tickText = (value) => String(Math.round(value * 1e6) / 1e6).replace("-", "−");

// Runs of layers whose number is known, as a path; a band goes there and back.
function stretches(series, ...keys) {
  const out = [[]];
  series.layer.forEach((_, at) => {
    if (keys.some((key) => series[key][at] === null)) out.push([]);
    else out.at(-1).push(at);
  });
  return out.filter((part) => part.length);
}

const path = (points) => "M" + points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");

function linePath(series, x, y) {
  return stretches(series, "value").map((part) => path(part.map((at) => [x(series.layer[at]), y(series.value[at])]))).join("");
}

// A layer without neighbours gets a narrow column instead of nothing.
function bandPath(series, x, y) {
  const side = (part, ends) => part.flatMap((at) => {
    const place = [x(series.layer[at]), y(ends[at])];
    return part.length > 1 ? [place] : [[place[0] - 2, place[1]], [place[0] + 2, place[1]]];
  });
  return stretches(series, "low", "high").map((part) => `${path([...side(part, series.low), ...side(part, series.high).toReversed()])}Z`).join("");
}

// Grid, ticks and titles inside `AREA`; `zero` is the line of no effect, null for none.
function axes(x, y, { range: [low, high], ends: [first, last], width, height, titles, zero = null }) {
  const bottom = height - AREA.bottom, middle = (AREA.left + width - AREA.right) / 2;
  const across = (name, value) => svg("line", { class: name, x1: AREA.left, x2: width - AREA.right, y1: y(value), y2: y(value) });
  return [
    ...ticks(low, high, 6).flatMap((value) => [across("grid", value),
      svg("text", { class: "tick", x: AREA.left - 6, y: y(value) + 4, "text-anchor": "end" }, tickText(value))]),
    ...(zero === null || zero < low || zero > high ? [] : [across(zero ? "zero chance" : "zero", zero)]),
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

// Draws a view of `chart_data` into the picture and gives back its scales.
function drawCurves(picture, view, { id, width, height, range, titles, zero, intervals = true }) {
  let ends = [Infinity, -Infinity];
  for (const series of [...view.nulls, ...view.curves]) for (const k of series.layer) ends = [Math.min(ends[0], k), Math.max(ends[1], k)];
  if (ends[0] > ends[1]) ends = [0, 1];
  const x = linear(ends, [AREA.left + 6, width - AREA.right - 6]), y = linear(range, [height - AREA.bottom, AREA.top]);
  const line = (series, kind) => svg("path", { class: `curve ${kind} ${series.dashed ? "A" : "Q"}`, "data-label": series.label, d: linePath(series, x, y), stroke: series.color });
  const dots = (series) => series.layer.flatMap((k, at) => series.dots[at] ? [svg("circle", { class: "few", cx: x(k), cy: y(series.value[at]), r: 2.8, stroke: series.color })] : []);
  picture.append(
    svg("defs", {}, ...view.nulls.map((series, at) => hatch(`${id}-hatch-${at}`, series.color))),
    ...axes(x, y, { range, ends, width, height, titles, zero }),
    ...view.nulls.map((series, at) => svg("path", { class: "null", d: bandPath(series, x, y), fill: `url(#${id}-hatch-${at})` })),
    ...view.controls.map((series) => line(series, "control")),
    ...(intervals ? view.curves : []).map((series) => svg("path", { class: "band", d: bandPath(series, x, y), fill: series.color })),
    ...view.curves.flatMap((series) => [line(series, ""), ...dots(series)]));
  return { x, y };
}

const cursorAt = (x, height) => svg("line", { class: "cursor", x1: x, x2: x, y1: AREA.top, y2: height - AREA.bottom });

// A piece of a curve, for legends.
function swatch(color, dashes = "") {
  return svg("svg", { width: 26, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: color, "stroke-width": 2.2, "stroke-dasharray": dashes }));
}
