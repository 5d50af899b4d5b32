// @ts-check
/** Which part of the trace is on the screen. Times are nanoseconds from the trace's first moment. */

const CLOSEST_NS = 20;
const MARGIN = 0.02;

export class Camera {
  /** @param {number} endNs the trace's last moment */
  constructor(endNs) {
    this.endNs = Math.max(endNs, 1);
    this.width = 1;
    this.start = -this.endNs * MARGIN;
    this.end = this.endNs * (1 + MARGIN);
  }

  /** Nanoseconds that are on the screen. */
  get span() {
    return this.end - this.start;
  }

  /** Nanoseconds of one pixel. */
  get nsPerPixel() {
    return this.span / this.width;
  }

  /** @param {number} ns */
  x(ns) {
    return ((ns - this.start) / this.span) * this.width;
  }

  /** @param {number} x */
  ns(x) {
    return this.start + (x / this.width) * this.span;
  }

  /**
   * Shows a range, within what makes sense.
   * @param {number} start
   * @param {number} end
   */
  show(start, end) {
    const widest = this.endNs * (1 + 2 * MARGIN);
    const span = Math.min(Math.max(end - start, CLOSEST_NS), widest);
    const middle = (start + end) / 2;
    const first = Math.min(
      Math.max(middle - span / 2, -this.endNs * MARGIN),
      this.endNs * (1 + MARGIN) - span,
    );
    this.start = first;
    this.end = first + span;
  }

  /** Shows a range with some room around it. @param {number} start @param {number} end */
  frame(start, end) {
    const room = Math.max((end - start) * 0.08, CLOSEST_NS);
    this.show(start - room, end + room);
  }

  /** Everything. */
  showAll() {
    this.show(-this.endNs * MARGIN, this.endNs * (1 + MARGIN));
  }

  /** Makes the span so many times as long, keeping the moment at x where it is. @param {number} factor @param {number} x */
  zoom(factor, x) {
    const span = Math.min(Math.max(this.span * factor, CLOSEST_NS), this.endNs * (1 + 2 * MARGIN));
    const fixed = this.ns(x);
    const start = fixed - (x / this.width) * span;
    this.show(start, start + span);
  }

  /** Moves by pixels. @param {number} pixels */
  pan(pixels) {
    const shift = pixels * this.nsPerPixel;
    this.show(this.start + shift, this.end + shift);
  }
}
