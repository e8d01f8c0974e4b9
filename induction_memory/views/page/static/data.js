// The blob of `pack.py`: base64, gzip, four bytes of length, JSON, arrays.

/** The JSON document and the arrays by name. */
export async function unpack(base64) {
  const text = atob(base64);
  const zipped = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) zipped[i] = text.charCodeAt(i);
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  return parse(await new Response(stream).arrayBuffer());
}

/** The same from the unzipped bytes. */
export function parse(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, entry] of Object.entries(meta.arrays)) arrays[name] = array(buffer, 4 + length, entry);
  delete meta.arrays;
  return { meta, arrays };
}

function array(buffer, start, entry) {
  const count = entry.shape.reduce((a, b) => a * b, 1);
  const at = start + entry.offset;
  const data = typed(buffer, at, count, entry.dtype);
  const strides = entry.shape.map((_, i) => entry.shape.slice(i + 1).reduce((a, b) => a * b, 1));
  const codes = entry.dtype === "u1" ? 255 : 65535;
  const quantised = "low" in entry;
  return {
    data,
    shape: entry.shape,
    strides,
    low: quantised ? entry.low : 0,
    step: quantised ? (entry.high - entry.low) / codes : 1,
    high: entry.high,
  };
}

function typed(buffer, at, count, dtype) {
  if (dtype === "u1") return new Uint8Array(buffer, at, count);
  if (dtype === "i1") return new Int8Array(buffer, at, count);
  if (dtype === "f4") return new Float32Array(buffer.slice(at, at + 4 * count));
  if (dtype !== "u2") throw new Error(`unknown type of numbers: ${dtype}`);
  const planes = new Uint8Array(buffer, at, 2 * count);
  const joined = new Uint16Array(count);
  for (let i = 0; i < count; i++) joined[i] = (planes[i] << 8) | planes[count + i];
  return joined;
}

/** One value of an array. */
export function valueAt(a, ...index) {
  let place = 0;
  for (let i = 0; i < index.length; i++) place += index[i] * a.strides[i];
  return a.low + a.step * a.data[place];
}

/** All values below the leading indices, as floats. */
export function slice(a, ...index) {
  let start = 0;
  for (let i = 0; i < index.length; i++) start += index[i] * a.strides[i];
  const count = index.length ? a.strides[index.length - 1] : a.data.length;
  const out = new Float32Array(count);
  for (let i = 0; i < count; i++) out[i] = a.low + a.step * a.data[start + i];
  return out;
}
