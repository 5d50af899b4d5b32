// @ts-check
/** Reads the binary format of tiles; `encoding.py` describes and writes it. */

/**
 * @typedef {Uint8Array | Uint16Array | Uint32Array | Float32Array | Float64Array} Column
 * @typedef {{meta: Record<string, any>, columns: Record<string, Column>}} Columns
 */

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {Columns}
 */
export function decode(buffer) {
  const head = new DataView(buffer);
  if (head.getUint32(0, false) !== 0x53534231) throw new Error("the server sent no columns");
  const size = head.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  /** @type {Record<string, Column>} */
  const columns = {};
  let at = 8 + size;
  for (const { name, type, length } of header.columns) {
    const Type = TYPES[/** @type {keyof typeof TYPES} */ (type)];
    columns[name] = new Type(buffer, at, length);
    at += Math.ceil((length * Type.BYTES_PER_ELEMENT) / 8) * 8;
  }
  return { meta: header.meta, columns };
}
