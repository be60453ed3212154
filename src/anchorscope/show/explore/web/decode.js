// Numbers out of base64: half precision, single precision, 32-bit integers, bytes.

const HALF = (() => {
  const table = new Float32Array(65536);
  for (let code = 0; code < 65536; code++) {
    const sign = code & 0x8000 ? -1 : 1, exponent = (code >> 10) & 31, fraction = code & 1023;
    if (exponent === 31) table[code] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) table[code] = sign * fraction * 2 ** -24;
    else table[code] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
})();

function bytesOf(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

function halvesOf(text) {
  const codes = new Uint16Array(bytesOf(text).buffer), out = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) out[i] = HALF[codes[i]];
  return out;
}

const floatsOf = (text) => new Float32Array(bytesOf(text).buffer);
const integersOf = (text) => new Int32Array(bytesOf(text).buffer);

function joined(parts) {
  if (parts.length === 1) return parts[0];
  const out = new parts[0].constructor(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { out.set(part, at); at += part.length; }
  return out;
}

// The blocks of a run: inside the page, or in files beside it that a server has to give.
async function blocksOf(head, number) {
  if (!head.files) {
    return Array.from({ length: head.blocks }, (_, at) => {
      const node = document.getElementById(`block-${number}-${at}`), block = JSON.parse(node.textContent);
      node.remove();
      return block;
    });
  }
  return Promise.all(head.files.map(async (file) => {
    const answer = await fetch(file);
    if (!answer.ok) throw new Error(`${file}: ${answer.status}`);
    return answer.json();
  }));
}
