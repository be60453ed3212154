// Text of models and datasets is data: it enters the page as text nodes only, and characters that
// cannot be seen (control, zero-width, direction marks, odd spaces) are written as their code.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\ufe00-\ufe0f]|(?! )\p{Zs}|\p{Cs}/gu;
const SIGNS = { "\n": "⏎", "\t": "⇥" };

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const codeOf = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// The text as nodes: what can be seen as it is, what cannot as a marked code.
function visible(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > at) nodes.push(document.createTextNode(text.slice(at, match.index)));
    const sign = SIGNS[match[0]] ?? codeOf(match[0]);
    nodes.push(element("span", { class: "code", title: codeOf(match[0]) }, sign));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

// Untrusted text in an element of its own, so that its direction stays its own affair.
const untrusted = (text, attributes = {}) => element("bdi", { dir: "auto", ...attributes }, ...visible(text));

function number(value, digits = 1) {
  if (value === null || Number.isNaN(value)) return "–";
  return value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1").replace("-", "−");
}

function short(value) {
  if (Number.isNaN(value)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return `${number(value / size, value / size < 10 ? 1 : 0)} ${unit}`;
  return String(Math.round(value * 100) / 100);
}
