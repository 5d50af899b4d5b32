// @ts-check
/**
 * Mouse and keyboard, as in Perfetto: W and S zoom, A and D pan; dragging pans, with Shift it selects
 * a range of time. The wheel zooms at the pointer; with Shift, or over the titles, it scrolls.
 */

const SPEED = 0.0018;
const DRAG_FROM = 4;
const KEYS = new Set(["w", "a", "s", "d", "ArrowLeft", "ArrowRight"]);

/**
 * @typedef {{camera: import("./camera.js").Camera, layout: import("./layout.js").Layout,
 *   moved: () => void, hover: (x: number, y: number) => void, leave: () => void,
 *   click: (x: number, y: number) => void, doubleClick: (x: number, y: number) => void,
 *   select: (from: number, to: number, isDone: boolean) => void, escape: () => void,
 *   focus: () => void, next: (direction: number) => void, row?: (direction: number) => void, mark: () => void}} Handlers
 */

/** Whether keys are meant for a text field. @param {EventTarget | null} target */
export function isTyping(target) {
  return target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

/**
 * @param {HTMLElement} surface
 * @param {Handlers} on
 * @returns {() => void} takes the listeners away
 */
export function listen(surface, on) {
  const control = new AbortController();
  const signal = control.signal;
  let pointerX = 0;
  surface.addEventListener("wheel", (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const x = event.offsetX;
    // Browsers turn the wheel sideways while Shift is held.
    if (event.shiftKey) on.layout.scrollTo(on.layout.scroll + (event.deltaY + event.deltaX) * unit);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) on.camera.pan(event.deltaX * unit);
    else on.camera.zoom(Math.exp(event.deltaY * unit * SPEED), x);
    on.moved();
  }, { passive: false, signal });

  /** @type {{x: number, y: number, isRange: boolean, moved: boolean, from: number} | null} */
  let drag = null;
  surface.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    surface.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, y: event.offsetY, isRange: event.shiftKey, moved: false, from: on.camera.ns(event.offsetX) };
  }, { signal });
  surface.addEventListener("pointermove", (event) => {
    pointerX = event.offsetX;
    if (!drag) {
      on.hover(event.offsetX, event.offsetY);
      return;
    }
    const dx = event.offsetX - drag.x;
    const dy = event.offsetY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < DRAG_FROM) return;
    drag.moved = true;
    if (drag.isRange) {
      on.select(drag.from, on.camera.ns(event.offsetX), false);
      return;
    }
    on.camera.pan(-dx);
    on.layout.scrollTo(on.layout.scroll - dy);
    drag.x = event.offsetX;
    drag.y = event.offsetY;
    on.moved();
  }, { signal });
  surface.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) on.click(event.offsetX, event.offsetY);
    else if (drag?.isRange) on.select(drag.from, on.camera.ns(event.offsetX), true);
    drag = null;
  }, { signal });
  surface.addEventListener("pointercancel", () => (drag = null), { signal });
  surface.addEventListener("pointerleave", () => on.leave(), { signal });
  surface.addEventListener("dblclick", (event) => on.doubleClick(event.offsetX, event.offsetY), { signal });
  keyboard(surface, on, () => pointerX, signal);
  return () => control.abort();
}

/** @param {HTMLElement} surface @param {Handlers} on @param {() => number} pointer @param {AbortSignal} signal */
function keyboard(surface, on, pointer, signal) {
  /** @type {Set<string>} */
  const held = new Set();
  let last = 0;
  const move = () => {
    if (!held.size) return;
    const now = performance.now();
    const lasting = Math.min(now - last, 50);
    last = now;
    const { camera } = on;
    if (held.has("w")) camera.zoom(Math.exp(-lasting * 0.0045), pointer());
    if (held.has("s")) camera.zoom(Math.exp(lasting * 0.0045), pointer());
    if (held.has("a") || held.has("ArrowLeft")) camera.pan(-lasting * camera.width * 0.0011);
    if (held.has("d") || held.has("ArrowRight")) camera.pan(lasting * camera.width * 0.0011);
    on.moved();
    requestAnimationFrame(move);
  };
  window.addEventListener("keydown", (event) => {
    if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (KEYS.has(key)) {
      event.preventDefault();
      if (!held.size) {
        last = performance.now() - 16;
        requestAnimationFrame(move);
      }
      held.add(key);
    } else if (key === "Escape") on.escape();
    else if (key === "f") on.focus();
    else if (key === "m") on.mark();
    else if (key === "." || key === ",") on.next(key === "." ? 1 : -1);
    else if ((key === "ArrowDown" || key === "ArrowUp") && on.row && event.target === surface) {
      event.preventDefault();
      on.row(key === "ArrowDown" ? 1 : -1);
    } else if (key === "0") {
      on.camera.showAll();
      on.moved();
    }
  }, { signal });
  window.addEventListener("keyup", (event) => held.delete(event.key.length === 1 ? event.key.toLowerCase() : event.key), { signal });
  window.addEventListener("blur", () => held.clear(), { signal });
}
