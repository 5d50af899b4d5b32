// @ts-check
/**
 * Draws slices with WebGL2: one instanced quad per item.
 *
 * Each scene's items are uploaded once. Panning, zooming and scrolling change uniforms; the buffers
 * stay. Of each row on the screen only the items on the screen are drawn.
 */

import { COLOURS, TILE, channels, colour, isLit, pattern, token } from "../theme.js";
import { itemsInView, rowsInView } from "./scenes.js";

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
in float start, width, share, colour, wide;
in uint name;
uniform float scale, offset;
uniform vec2 screen;
uniform vec3 row;  // top, height, whether it is an area of shares
uniform sampler2D palette;
uniform vec3 paper;
out vec4 fill;
flat out int pattern;
void main() {
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
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
  pattern = int(texelFetch(palette, ivec2(int(colour), 0), 0).a);
  float shade = float((name + 1u) * 2654435761u >> 24) / 127.5 - 1.0;
  base = row.z > 0.5 ? base : (shade > 0.0 ? mix(base, vec3(1.0), shade * 0.16) : mix(base, vec3(0.0), -shade * 0.10));
  fill = vec4(mix(paper, base, wide > 0.5 || row.z > 0.5 ? 1.0 : mix(0.5, 1.0, share)), 1.0);
  gl_Position = vec4(at.x / screen.x * 2.0 - 1.0, 1.0 - at.y / screen.y * 2.0, 0.0, 1.0);
}`;
/** What the fragment shader calls each pattern. */
const PATTERN_NUMBERS = { plain: 0, stripes: 1, dots: 2, lines: 3 };
/** The rows of the patterns' tiles, a bit for each pixel. */
const LIT_ROWS = /** @type {import("../theme.js").Pattern[]} */ (["stripes", "dots", "lines"]).flatMap((name) => Array.from({ length: TILE }, (_, y) => {
  let row = 0;
  for (let x = 0; x < TILE; x++) if (isLit(name, x, y)) row += 2 ** x;
  return `${row}u`;
}));

const FRAGMENT = `#version 300 es
precision highp float;
in vec4 fill;
flat in int pattern;
uniform float ratio, tall;
out vec4 result;
const uint lit[] = uint[](${LIT_ROWS.join()});
void main() {
  ivec2 at = ivec2(floor(vec2(gl_FragCoord.x, tall - gl_FragCoord.y) / ratio)) % ${TILE};
  bool isLit = pattern > 0 && (lit[(pattern - 1) * ${TILE} + at.y] >> at.x & 1u) == 1u;
  result = isLit ? vec4(mix(fill.rgb, vec3(1.0), 0.45), 1.0) : fill;
}`;

const MOST_SCENES = 8;

/** Columns of a scene in the order of the attributes: name, bytes of a value. */
const COLUMNS = /** @type {const} */ ([["start", 4], ["width", 4], ["share", 4], ["colour", 1], ["wide", 1], ["name", 4]]);

/** What drivers that draw on the processor call themselves. */
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;

/** Whether WebGL2 draws with a graphics processor. Browsers do not all refuse a slow context when asked to. */
function hasGraphicsProcessor() {
  const gl = document.createElement("canvas").getContext("webgl2", { failIfMajorPerformanceCaveat: true });
  if (!gl) return false;
  const unmasked = gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL;
  const name = String(gl.getParameter(unmasked ?? gl.RENDERER));
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !SOFTWARE.test(name);
}

export class GlRenderer {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {boolean} evenInSoftware without a graphics processor, which draws item by item
   * @returns {GlRenderer | null} null where the browser has no WebGL2, or draws it in software
   */
  static create(canvas, evenInSoftware) {
    if (!evenInSoftware && !hasGraphicsProcessor()) return null;
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
    /** @param {string} name */
    const uniform = (name) => gl.getUniformLocation(/** @type {WebGLProgram} */ (program), name);
    this._uniforms = { screen: uniform("screen"), scale: uniform("scale"), offset: uniform("offset"), row: uniform("row"), paper: uniform("paper"), ratio: uniform("ratio"), tall: uniform("tall") };
    this._places = COLUMNS.map(([name]) => gl.getAttribLocation(/** @type {WebGLProgram} */ (program), name));
    for (const place of this._places) {
      gl.enableVertexAttribArray(place);
      gl.vertexAttribDivisor(place, 1);
    }
    /** @type {Map<import("./scenes.js").Scene, WebGLBuffer[]>} */
    this._uploaded = new Map();
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
    COLOURS.forEach((_, number) => data.set([...channels(colour(number)), PATTERN_NUMBERS[pattern(number) ?? "plain"]], number * 4));
    gl.bindTexture(gl.TEXTURE_2D, this._palette ?? null);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, COLOURS.length, 1, 0, gl.RGBA, gl.FLOAT, data);
  }

  /** @param {import("./scenes.js").Scene} scene @returns {WebGLBuffer[]} */
  _upload(scene) {
    const uploaded = /** @type {Map<import("./scenes.js").Scene, WebGLBuffer[]>} */ (this._uploaded);
    const known = uploaded.get(scene);
    if (known) return known;
    const gl = this._gl;
    const columns = [scene.startNs, scene.width, scene.share, scene.colour, scene.wide, scene.name];
    const buffers = columns.map((data) => {
      const buffer = /** @type {WebGLBuffer} */ (gl.createBuffer());
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
      return buffer;
    });
    uploaded.set(scene, buffers);
    for (const [oldest, old] of uploaded) {
      if (uploaded.size <= MOST_SCENES) break;
      for (const buffer of old) gl.deleteBuffer(buffer);
      uploaded.delete(oldest);
    }
    return buffers;
  }

  /** Makes the attributes begin at an item. @param {WebGLBuffer[]} buffers @param {number} first */
  _beginAt(buffers, first) {
    const gl = this._gl;
    COLUMNS.forEach(([name, size], at) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffers[at]);
      const place = /** @type {number[]} */ (this._places)[at];
      if (name === "name") gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_INT, 0, first * size);
      else gl.vertexAttribPointer(place, 1, size === 1 ? gl.UNSIGNED_BYTE : gl.FLOAT, false, 0, first * size);
    });
  }

  /**
   * @param {Iterable<import("./scenes.js").Scene>} scenes
   * @param {import("./camera.js").Camera} camera
   * @param {import("./layout.js").Layout} layout
   * @param {number} height in CSS pixels
   */
  draw(scenes, camera, layout, height) {
    const uniforms = this._uniforms;
    if (this.isLost || !this._program || !uniforms) return;
    const gl = this._gl;
    gl.viewport(0, 0, this._canvas.width, this._canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.useProgram(this._program);
    gl.uniform2f(uniforms.screen, camera.width, height);
    gl.uniform1f(uniforms.scale, 1 / camera.nsPerPixel);
    gl.uniform1f(uniforms.ratio, this._canvas.width / camera.width);
    gl.uniform1f(uniforms.tall, this._canvas.height);
    gl.uniform3f(uniforms.paper, ...channels(token("paper")));
    gl.bindTexture(gl.TEXTURE_2D, this._palette ?? null);
    for (const scene of scenes) {
      const buffers = this._upload(scene);
      gl.uniform1f(uniforms.offset, camera.x(scene.start));
      for (const { slot, top, place } of rowsInView(scene, layout)) {
        const [first, end] = itemsInView(scene, slot, camera);
        if (end <= first) continue;
        this._beginAt(buffers, first);
        gl.uniform3f(uniforms.row, top, place.rowHeight, place.lane?.kind === "busy" ? 1 : 0);
        gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, end - first);
      }
    }
  }
}
