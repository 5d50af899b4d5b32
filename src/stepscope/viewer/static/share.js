// @ts-check
/** Passes the view on: as a link that opens elsewhere, as a picture, as a page in one file. */

import { postJson } from "./api.js";
import { h, replace } from "./dom.js";

const PIXELS = 2;
const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/** What XML has no way to write; names from traces may hold it. */
const UNWRITABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;

/**
 * Shows the ways to pass the view on.
 * @param {string} title what is open
 * @param {string} view
 */
export function showShare(title, view) {
  const link = h("input", { class: "share-link", readonly: "", "aria-label": "Link" });
  link.hidden = true;
  const status = h("p", { class: "note", role: "status" });
  const name = `${title} ${view}`.replace(/[^\w.-]+/g, "-");
  /** @param {string} text @param {() => Promise<string>} work */
  const action = (text, work) => h("button", { type: "button", onclick: () => work().then((words) => replace(status, words), (error) => replace(status, `That failed: ${error.message}`)) }, text);
  const dialog = h(
    "dialog", { class: "help share", onclose: () => dialog.remove() },
    h("h2", {}, "Share this view"),
    h("div", { class: "buttons" },
      action("Copy link", () => copyLink(link)),
      action("Save picture", async () => save(`${name}.png`, await picture())),
      action("Save as a page", async () => save(`${name}.html`, await page(title, view)))),
    link,
    status,
    h("p", { class: "note" }, "The link opens in any browser that reaches this machine's port, also over SSH with the port forwarded, as long as the viewer runs. Picture and page need no viewer; a page keeps its text and its tables."),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}

/** A link with a token of its own. @param {HTMLInputElement} field */
async function copyLink(field) {
  const { token, minutes } = await postJson("/api/share");
  field.value = `${location.origin}/?token=${token}${location.hash}`;
  field.hidden = false;
  field.select();
  const until = `Who opens it within ${minutes} minutes sees this view for as long as the viewer runs.`;
  try {
    await navigator.clipboard.writeText(field.value);
    return `Copied. ${until}`;
  } catch {
    return `Copy the link above. ${until}`;
  }
}

/** @param {string} name @param {Blob} content */
function save(name, content) {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  return `Saved ${name}.`;
}

/** The window as a picture, in twice its pixels. @returns {Promise<Blob>} */
async function picture() {
  const [width, height] = [innerWidth, innerHeight];
  const xml = new XMLSerializer();
  const style = xml.serializeToString(document.createTextNode(await styles()));
  const text = `<body xmlns="http://www.w3.org/1999/xhtml"><style>${style}</style>${xml.serializeToString(await still(true)).replace(UNWRITABLE, "\ufffd")}</body>`;
  const theme = document.documentElement.dataset.theme;
  const drawn = `<svg xmlns="http://www.w3.org/2000/svg" data-theme="${theme}" width="${width}" height="${height}"><foreignObject width="${width}" height="${height}">${text}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawn)}`;
  await image.decode();
  const canvas = h("canvas", { width: width * PIXELS, height: height * PIXELS });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("the picture is too large"))), "image/png"));
}

/** The view as a page in one file, without scripts. @param {string} title @param {string} view */
async function page(title, view) {
  const shown = await still(false);
  shown.querySelector(".bar-top")?.replaceChildren(h("strong", {}, "Stepscope"), h("span", {}, title), h("span", { class: "note" }, `${view}, saved ${new Date().toLocaleString()}`));
  const head = h("title", {}, `${title} · ${view} · Stepscope`).outerHTML;
  const text = `<!doctype html>
<html lang="en" data-theme="${document.documentElement.dataset.theme}"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">${head}
<style>${await styles()}</style></head>
<body>${shown.outerHTML}</body></html>`;
  return new Blob([text], { type: "text/html" });
}

/** The page's style sheets as text: a rule that was read loses what it takes from variables. */
async function styles() {
  const texts = [...document.styleSheets].map(async (sheet) => (await fetch(sheet.href ?? "")).text());
  return [...(await Promise.all(texts)), `:root { ${document.documentElement.style.cssText} }`].join("\n");
}

/**
 * What the page shows, with pictures in the place of canvases.
 * @param {boolean} isScrolled whether what is scrolled is moved, as a picture needs it
 */
async function still(isScrolled) {
  window.dispatchEvent(new CustomEvent("draw-now"));
  const shown = /** @type {HTMLElement} */ (document.getElementById("app"));
  const copy = /** @type {HTMLElement} */ (shown.cloneNode(true));
  copy.style.height = `${innerHeight}px`;
  /** @param {string} selector @returns {[any, any][]} */
  const both = (selector) => {
    const copies = copy.querySelectorAll(selector);
    return [...shown.querySelectorAll(selector)].map((one, at) => [one, copies[at]]);
  };
  /** @type {[Element, Element][]} */
  const canvases = both("canvas");
  for (const [one, other] of both("*")) {
    if (isScrolled && (one.scrollTop || one.scrollLeft)) {
      other.style.overflow = "hidden";
      for (const child of other.children) child.style.transform = `translate(${-one.scrollLeft}px, ${-one.scrollTop}px)`;
    }
    if (one instanceof HTMLInputElement) other.setAttribute("value", one.value);
    if (one instanceof HTMLTextAreaElement) other.textContent = one.value;
    if (one instanceof HTMLOptionElement) other.toggleAttribute("selected", one.selected);
  }
  for (const [one, other] of canvases) {
    const canvas = /** @type {HTMLCanvasElement} */ (one);
    const image = h("img", { class: canvas.className, alt: "", src: canvas.width && canvas.height ? canvas.toDataURL() : null });
    image.style.cssText = canvas.style.cssText;
    Object.assign(image.style, { width: `${canvas.clientWidth}px`, height: `${canvas.clientHeight}px` });
    other.replaceWith(image);
  }
  const icons = copy.querySelectorAll("img[src^='/']");
  for (const icon of /** @type {Iterable<HTMLImageElement>} */ (icons)) {
    const text = await (await fetch(icon.getAttribute("src") ?? "")).text();
    icon.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
  }
  return copy;
}
