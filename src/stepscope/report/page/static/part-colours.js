// @ts-check
/** The colour of each part of a step, the same in viewer and reports. */

import { COLOURS, paint, pattern } from "./theme.js";

/** Causes of idle time: words of the report, and their colours. */
export const CAUSES = /** @type {Record<string, [string, number]>} */ ({
  device_wait: ["idle: queued work waits", 16],
  graph_gap: ["idle: inside CUDA graphs", 29],
  input: ["idle: input", 17],
  synchronisation: ["idle: synchronisation", 18],
  allocation: ["idle: allocation", 19],
  pageable_copy: ["idle: pageable copies", 20],
  annotated_phase: ["idle: annotated phase", 21],
  op_dispatch: ["idle: launches and dispatch", 22],
  cpu_operators: ["idle: operators on the CPU", 35],
  compilation: ["idle: compiling or loading kernels", 25],
  garbage_collection: ["idle: garbage collection", 26],
  waiting_for_communication: ["idle: waiting for communication", 27],
  profiler: ["idle: profiler", 28],
  one_off: ["idle: one-off calls", 30],
  backward: ["idle: between operators of backward", 31],
  not_recorded: ["idle: host, cause not recorded", 32],
  python: ["idle: Python", 23],
  unknown: ["idle: cause not recorded", 24],
});

const COLOUR_OF = /** @type {Record<string, number>} */ ({
  compute: 1, "exposed communication": 2, "exposed copies": 3, forward: 1, "between forward and backward": 33, backward: 5, optimizer: 8, recomputed: 6,
  communication: 2, "sends and receives": 2, saving: 21, evaluation: 3, compilation: 25, input: 17, other: 0, idle: 16, "op dispatch": 22, python: 23,
  // The causes on a critical path.
  copy: 3, fill: 4, dispatch: 22, launch: 8, operators: 5, synchronisation: 18, allocation: 19, "garbage collection": 26, "compiling or loading kernels": 25, "operators on the CPU": 35,
  "pageable copy": 20, annotation: 6, "annotated phase": 21, "one-off call": 30, "waiting for communication": 27, profiler: 28, "host, cause not recorded": 32,
  "between operators of backward": 31, "launch latency": 16, "device gap": 29, "other wait": 24,
  // Kinds of kernels, as `colours.py` has them, and copies.
  "matrix products": 1, "fused attention": 12, convolutions: 13, elementwise: 14, "random numbers and dropout": 14, normalisation: 15, softmax: 15,
  reductions: 33, loss: 33, embeddings: 34, pooling: 34, "recurrent cells": 34, "sorting and indexing": 34, "compiled (Triton)": 34, "not classified": 34,
  "host to device": 3, "device to host": 3, "device to device": 3,
  ...Object.fromEntries(Object.values(CAUSES)),
});

/** Whether a part has a colour of its own. @param {string} part */
export function hasColour(part) {
  return part in COLOUR_OF;
}

/** The colour of a part as a background, which follows the theme. @param {string} part */
export function partPaint(part) {
  return paint(COLOUR_OF[part] ?? 0);
}

/** The colour of a part as a fill, and the name of its pattern. @param {string} part @returns {[string, string | undefined]} */
export function partFill(part) {
  const number = COLOUR_OF[part] ?? 0;
  return [`var(--colour-${COLOURS[number]})`, pattern(number)];
}

const OF_LIMITS = /** @type {Record<string, number>} */ ({
  "GPU compute": 1, CPU: 1, "exposed communication": 2, copies: 3, input: 17, host: 23,
});

/** The colour of what limits a step, as a background. @param {string} limit */
export function limitPaint(limit) {
  return limit === "floor" ? "var(--good)" : paint(OF_LIMITS[limit] ?? 0);
}
