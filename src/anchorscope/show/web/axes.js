// Scales, round ticks, and curves with their bands as paths; for the report and the page of samples.

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

// A round number at least as large: axes then stay put between neighbouring layers.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * power).find((size) => size >= value);
}

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

function linePath(series, x, y, key = "value") {
  return stretches(series, key).map((part) => path(part.map((at) => [x(series.layer[at]), y(series[key][at])]))).join("");
}

// A layer without neighbours gets a narrow column instead of nothing.
function bandPath(series, x, y) {
  const side = (part, ends) => part.flatMap((at) => {
    const place = [x(series.layer[at]), y(ends[at])];
    return part.length > 1 ? [place] : [[place[0] - 2, place[1]], [place[0] + 2, place[1]]];
  });
  return stretches(series, "low", "high").map((part) => `${path([...side(part, series.low), ...side(part, series.high).toReversed()])}Z`).join("");
}
