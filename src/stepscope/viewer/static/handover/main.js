// @ts-check
/** Opens Perfetto"s page in another tab, waits until it listens, and sends it the trace. */

import { startTheme } from "../theme.js";

const ASK_EVERY_MS = 50;
const PATIENCE_MS = 60_000;

/** @typedef {{ title: string, address: string, origin: string, bytes: number }} About */

/** @param {string} id */
function element(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/** @param {string} text */
function say(text) {
  element("state").textContent = text;
}

/**
 * Asks the other tab until it answers; false if it is closed or never does.
 * @param {Window} tab
 * @param {string} origin
 * @returns {Promise<boolean>}
 */
function listens(tab, origin) {
  return new Promise((resolve) => {
    const began = performance.now();
    /** @param {boolean} answer */
    const end = (answer) => {
      clearInterval(timer);
      removeEventListener("message", hear);
      resolve(answer);
    };
    /** @param {MessageEvent} message */
    const hear = (message) => {
      if (message.origin === origin && message.data === "PONG") end(true);
    };
    const timer = setInterval(() => {
      if (tab.closed || performance.now() - began > PATIENCE_MS) end(false);
      else tab.postMessage("PING", origin);
    }, ASK_EVERY_MS);
    addEventListener("message", hear);
  });
}

/** @param {About} about */
async function open(about) {
  const tab = window.open(about.address);
  if (!tab) {
    say("The browser has blocked the new tab: allow it, and press the button again.");
    return;
  }
  say("Reading the trace …");
  const reading = fetch("/trace").then((answer) => {
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    return answer.arrayBuffer();
  });
  const [buffer, isListening] = await Promise.all([reading, listens(tab, about.origin)]);
  if (!isListening) {
    say(`No answer from ${about.origin}: is it reachable from this machine?`);
    return;
  }
  tab.postMessage({ perfetto: { buffer, title: about.title } }, about.origin);
  say("Sent. This tab can be closed once the other one shows the trace.");
}

async function start() {
  startTheme();
  /** @type {About} */
  const about = await (await fetch("/about")).json();
  element("title").textContent = about.title;
  const button = /** @type {HTMLButtonElement} */ (element("open"));
  button.title = about.address;
  button.disabled = false;
  button.addEventListener("click", () => {
    open(about).catch((error) => say(String(error)));
  });
}

start().catch((error) => say(`The viewer does not answer: is it still running? (${error})`));
