// @ts-check
/** Keys and mouse, in a dialog. */

import { h } from "./dom.js";

const KEYS = /** @type {[string, string][]} */ ([
  ["W / S", "zoom in and out at the pointer"],
  ["A / D", "pan"],
  ["Wheel", "zoom at the pointer"],
  ["Shift + wheel", "scroll the lanes"],
  ["Drag", "pan"],
  ["Shift + drag", "select a range of time"],
  ["Click", "details, links and stack of a slice; a step becomes the range"],
  ["Double click, F", "zoom to the slice; F in the memory view to the allocation's life"],
  ["M", "make the selected slice the range, or what is in view where none is; in the memory view go to the peak"],
  [", / .", "the slice before and after in the row, or the first in view; in the memory view the moment"],
  ["↑ / ↓", "with the timeline in focus: the slice in the row above and below"],
  ["0", "show the whole trace"],
  ["/", "search"],
  ["Ctrl K", "go to a view, question, step or finding by a few letters; search, or run SQL"],
  ["Enter", "in the search box: the first hit in view, then the next; with Shift the one before"],
  ["Esc", "clear the selection, then the search"],
]);

/** Shows it. */
export function showHelp() {
  const close = () => dialog.remove();
  const dialog = h(
    "dialog", { class: "help", onclose: close },
    h("h2", {}, "Keys and mouse"),
    h("dl", { class: "facts" }, ...KEYS.flatMap(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
    h("p", { class: "note" }, "The address always names what is shown. Share copies a link that also opens in another browser while the viewer runs."),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}
