// @ts-check
/** Builds elements. Text becomes text nodes, never markup: names come from untrusted files. */

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | EventListener | ((event: any) => void)>} Props
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Sets attributes, adds functions as listeners ("onclick" listens for "click"), and adds children.
 * @param {Element} element
 * @param {Props} props
 * @param {Child[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, ...children);
}

/**
 * Adds children, except those that are null or false.
 * @param {Element} element
 * @param {...Child} children
 */
export function add(element, ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * An element of HTML.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, props, children);
  return element;
}

/**
 * The children of a sentence: what stands between backticks becomes code.
 * @param {string} text
 * @returns {Child[]}
 */
export function prose(text) {
  return text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? h("code", {}, part) : part));
}

/**
 * An element of SVG.
 * @param {string} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function svg(tag, props = {}, ...children) {
  const element = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  fill(element, props, children);
  return element;
}

/**
 * Puts children in the place of all that an element holds.
 * @param {Element} element
 * @param {...Child} children
 */
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, ...children);
}

/**
 * A function that runs once per frame, however often it is called.
 * @param {() => void} work
 * @returns {() => void}
 */
export function oncePerFrame(work) {
  const now = () => { if (waiting.delete(now)) work(); };
  return () => {
    if (waiting.has(now)) return;
    waiting.add(now);
    requestAnimationFrame(now);
  };
}

/** What waits for the next frame. @type {Set<() => void>} */
const waiting = new Set();

/** Does at once what waits for the next frame: paper has none. */
export function drawNow() {
  for (const now of waiting) now();
}

/**
 * Makes the buttons of a row one tab stop: the arrow keys go from one to the next. Who redraws them says with
 * tabindex which one it is.
 * @param {HTMLElement} row
 */
export function oneTabStop(row) {
  row.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const buttons = [...row.querySelectorAll("button")];
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    if (!direction || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (at + direction + buttons.length) % buttons.length;
    buttons[next].focus();
  });
}
