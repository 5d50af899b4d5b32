// @ts-check
/**
 * Draws slices with WebGL2: one instanced quad per item.
 *
 * Each scene's items are uploaded once. Panning, zooming and scrolling change uniforms and a small
 * texture with the place of each row; the buffers stay.
 */

import { COLOURS, channels, colour, token } from "../theme.js";

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
in float start, width, share, slot, colour, wide;
in uint name;
uniform float scale, offset, ratio;
uniform vec2 screen;
uniform sampler2D rows, palette;
uniform vec3 paper;
out vec4 fill;
void main() {
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  vec4 row = texelFetch(rows, ivec2(int(slot), 0), 0);
  float x0 = offset + start * scale;
  float w = width * scale;
  float gap = w > 4.0 ? 1.0 : 0.0;
  float x1 = x0 + max(w - gap, 1.0);
  float tall = row.y - 1.0;
  // A bucket of narrow slices is as tall as the share of it that they cover, and never nothing.
  float part = wide > 0.5 ? 1.0 : mix(0.35, 1.0, share);
  float y0 = row.x + tall * (row.z > 0.5 ? 1.0 - (wide > 0.5 ? 1.0 : share) : (1.0 - part));
  vec2 at = vec2(mix(x0, x1, corner.x), mix(y0, row.x + tall, corner.y));
  vec3 base = texelFetch(palette, ivec2(int(colour), 0), 0).rgb;
  float shade = float((name + 1u) * 2654435761u >> 24) / 127.5 - 1.0;
  base = row.z > 0.5 ? base : (shade > 0.0 ? mix(base, vec3(1.0), shade * 0.16) : mix(base, vec3(0.0), -shade * 0.10));
  fill = vec4(mix(paper, base, wide > 0.5 || row.z > 0.5 ? 1.0 : mix(0.5, 1.0, share)), row.w);
  gl_Position = vec4(at.x / screen.x * 2.0 - 1.0, 1.0 - at.y / screen.y * 2.0, 0.0, row.y > 0.0 ? 1.0 : 0.0);
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
in vec4 fill;
out vec4 result;
void main() { result = fill; }`;

const MOST_SCENES = 8;

/** @typedef {{vao: WebGLVertexArrayObject, buffers: WebGLBuffer[], count: number}} Uploaded */

export class GlRenderer {
  /**
   * @param {HTMLCanvasElement} canvas
   * @returns {GlRenderer | null} null where the browser has no WebGL2
   */
  static create(canvas) {
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, premultipliedAlpha: true });
    if (!gl) return null;
    try {
      return new GlRenderer(canvas, gl);
    } catch {
      return null;
    }
  }

  /** @param {HTMLCanvasElement} canvas @param {WebGL2RenderingContext} gl */
  constructor(canvas, gl) {
    this.kind = "webgl2";
    this._canvas = canvas;
    this._gl = gl;
    this.isLost = false;
    canvas.addEventListener("webglcontextlost", (event) => {
      event.preventDefault();
      this.isLost = true;
    });
    canvas.addEventListener("webglcontextrestored", () => {
      this.isLost = false;
      this._start();
    });
    this._start();
  }

  _start() {
    const gl = this._gl;
    const program = gl.createProgram();
    for (const [type, text] of /** @type {[number, string][]} */ ([[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]])) {
      const shader = gl.createShader(type);
      if (!shader || !program) throw new Error("no shader");
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader) ?? "shader");
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program) ?? "program");
    this._program = program;
    /** @type {Map<import("./scenes.js").Scene, Uploaded>} */
    this._uploaded = new Map();
    this._rows = this._texture();
    this._palette = this._texture();
    this.setColours();
  }

  _texture() {
    const gl = this._gl;
    const texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    return texture;
  }

  /** Takes the tokens' colours. */
  setColours() {
    const gl = this._gl;
    const data = new Float32Array(COLOURS.length * 4);
    COLOURS.forEach((_, number) => data.set([...channels(colour(number)), 1], number * 4));
    gl.bindTexture(gl.TEXTURE_2D, this._palette ?? null);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, COLOURS.length, 1, 0, gl.RGBA, gl.FLOAT, data);
  }

  /** @param {import("./scenes.js").Scene} scene @returns {Uploaded} */
  _upload(scene) {
    const known = this._uploaded?.get(scene);
    if (known) return known;
    const gl = this._gl;
    const slot = new Float32Array(scene.startNs.length);
    for (let row = 0; row < scene.rows.length; row++) slot.fill(row, scene.offset[row], scene.offset[row + 1]);
    const vao = gl.createVertexArray();
    gl.bindVertexArray(vao);
    /** @type {WebGLBuffer[]} */
    const buffers = [];
    /** @param {string} name @param {ArrayBufferView} data @param {number} type @param {boolean} isWhole */
    const put = (name, data, type, isWhole = false) => {
      const place = gl.getAttribLocation(/** @type {WebGLProgram} */ (this._program), name);
      const buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
      gl.enableVertexAttribArray(place);
      if (isWhole) gl.vertexAttribIPointer(place, 1, type, 0, 0);
      else gl.vertexAttribPointer(place, 1, type, false, 0, 0);
      gl.vertexAttribDivisor(place, 1);
      buffers.push(/** @type {WebGLBuffer} */ (buffer));
    };
    put("start", scene.startNs, gl.FLOAT);
    put("width", scene.width, gl.FLOAT);
    put("share", scene.share, gl.FLOAT);
    put("slot", slot, gl.FLOAT);
    put("colour", scene.colour, gl.UNSIGNED_BYTE);
    put("wide", scene.wide, gl.UNSIGNED_BYTE);
    put("name", scene.name, gl.UNSIGNED_INT, true);
    gl.bindVertexArray(null);
    const uploaded = { vao: /** @type {WebGLVertexArrayObject} */ (vao), buffers, count: scene.startNs.length };
    this._uploaded?.set(scene, uploaded);
    for (const [oldest, one] of this._uploaded ?? []) {
      if ((this._uploaded?.size ?? 0) <= MOST_SCENES) break;
      gl.deleteVertexArray(one.vao);
      for (const buffer of one.buffers) gl.deleteBuffer(buffer);
      this._uploaded?.delete(oldest);
    }
    return uploaded;
  }

  /**
   * @param {Iterable<import("./scenes.js").Scene>} scenes
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   * @param {number} height in CSS pixels
   */
  draw(scenes, camera, layout, height) {
    if (this.isLost || !this._program) return;
    const gl = this._gl;
    gl.viewport(0, 0, this._canvas.width, this._canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.useProgram(this._program);
    /** @param {string} name */
    const uniform = (name) => gl.getUniformLocation(/** @type {WebGLProgram} */ (this._program), name);
    gl.uniform2f(uniform("screen"), camera.width, height);
    gl.uniform1f(uniform("scale"), 1 / camera.nsPerPixel);
    gl.uniform3f(uniform("paper"), ...channels(token("paper")));
    gl.uniform1i(uniform("rows"), 0);
    gl.uniform1i(uniform("palette"), 1);
    gl.activeTexture(gl.TEXTURE1);
    gl.bindTexture(gl.TEXTURE_2D, this._palette ?? null);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindTexture(gl.TEXTURE_2D, this._rows ?? null);
    for (const scene of scenes) {
      const { vao, count } = this._upload(scene);
      const data = placesOf(scene, layout, height);
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, scene.rows.length, 1, 0, gl.RGBA, gl.FLOAT, data);
      gl.uniform1f(uniform("offset"), camera.x(scene.start));
      gl.bindVertexArray(vao);
      gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count);
    }
    gl.bindVertexArray(null);
  }
}

/**
 * Of each row of a scene: its top, its height (0: it is not on the screen), whether it is drawn as
 * an area of shares, and its opacity.
 * @param {import("./scenes.js").Scene} scene
 * @param {import("./layout.js").Layout} layout
 * @param {number} height
 */
export function placesOf(scene, layout, height) {
  const data = new Float32Array(Math.max(1, scene.rows.length) * 4);
  for (const place of layout.visible()) {
    const lane = place.lane;
    if (!lane || lane.rows_of !== scene.of) continue;
    const top = layout.screenY(place);
    if (top > height) continue;
    for (let row = 0; row < place.rows; row++) {
      const slot = scene.slot.get(lane.first_row + row);
      if (slot === undefined) continue;
      if (!place.pinned && top + row * place.rowHeight < layout.pinnedHeight) continue; // below the pinned ones
      const isArea = lane.kind === "busy" ? 1 : 0;
      data.set([top + row * place.rowHeight, place.rowHeight, isArea, 1], slot * 4);
    }
  }
  return data;
}
