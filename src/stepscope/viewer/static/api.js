// @ts-check
/** Asks the server. Everything goes to the page's own origin. */

import { decode } from "./tile-format.js";

/** What went wrong, in the server's words. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {boolean} changed whether the recording is no longer the one that was opened
   */
  constructor(message, status, changed) {
    super(message);
    this.status = status;
    this.changed = changed;
  }
}

/** @typedef {Record<string, string | number | null | undefined>} Params */

/** @param {string} path @param {Params} params */
function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined) query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** @param {Response} response */
async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  let changed = false;
  try {
    const text = await response.text();
    const body = text.startsWith("{") ? JSON.parse(text) : { error: text.trim() };
    message = body.error || message;
    changed = Boolean(body.changed);
  } catch {
    // The status says enough.
  }
  if (changed) window.dispatchEvent(new CustomEvent("trace-changed", { detail: message }));
  throw new ApiError(message, response.status, changed);
}

/** @param {string} path @param {RequestInit} options */
async function ask(path, options) {
  try {
    return await checked(await fetch(path, { credentials: "same-origin", ...options }));
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("the viewer has ended: start it again", 0, false);
    throw error;
  }
}

/**
 * @param {string} path
 * @param {Params} [params]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function getJson(path, params = {}, signal) {
  return (await ask(address(path, params), { signal: signal ?? null })).json();
}

/**
 * @param {string} path
 * @param {Params} [params]
 * @param {AbortSignal} [signal]
 */
export async function getColumns(path, params = {}, signal) {
  return decode(await (await ask(address(path, params), { signal: signal ?? null })).arrayBuffer());
}

/**
 * @param {string} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function postJson(path, body = {}) {
  const headers = { "content-type": "application/json" };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

/** Whether an error only means that nobody waits for the answer any more. @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}
