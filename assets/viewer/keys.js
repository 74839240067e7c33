// Keys work while the focus is inside the viewer, but not in a text field.

const KEYS = [
  ["w s", "zoom in, out"], ["a d", "pan left, right"], ["f", "show everything"], [". ,", "next, previous span"],
  ["↑ ↓", "track above, below (timeline)"], ["t", "pin the track of the card"], ["n p", "next, previous rejection"], ["[ ]", "previous, next step"],
  ["space", "play, pause"], ["r", "show rejected drafts"], ["← →", "move through tokens (text)"],
  ["Enter", "pin the card"], ["Esc", "close the card"], ["/", "search"], ["x", "figures of the window"],
  ["drag", "pan (timeline)"], ["Shift+drag", "figures of a range"], ["Ctrl+wheel", "zoom at the pointer"],
  ["double-click", "show everything"], ["?", "this help"],
];

/** The keys' actions on a viewer. */
function keyActions(viewer) {
  const { gantt, replay } = viewer;
  return {
    w: () => gantt.zoom(0.6), s: () => gantt.zoom(1 / 0.6), a: () => gantt.pan(-0.2), d: () => gantt.pan(0.2),
    f: () => gantt.fit(), ".": () => viewer.stepSpan(1), ",": () => viewer.stepSpan(-1),
    n: () => replay.step("rejections", 1), p: () => replay.step("rejections", -1),
    "[": () => replay.step("commits", -1), "]": () => replay.step("commits", 1),
    " ": () => !replay.node.hidden && replay.play(!replay.playing),
    "/": () => viewer.search.input.focus(), x: () => gantt.range && viewer.select(gantt.range),
    r: () => viewer.showRejected(!viewer.rejected.checked), t: () => viewer.pinTrack(), "?": () => viewer.help(true),
  };
}

function keyListener(viewer) {
  const actions = keyActions(viewer);
  return (event) => {
    const { target, key } = event;
    if (key === "Escape") return viewer.shown ? viewer.release() : viewer.select(null);
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return undefined;
    if (target.matches("textarea, select, [contenteditable=true], input:not([type=range])")) return undefined;
    if (key === " " && target.closest("button, summary, a")) return undefined;
    const inTimeline = target.closest(".ss-gantt");
    const action = actions[key.toLowerCase()] ?? (inTimeline && { ArrowUp: () => viewer.stepTrack(-1), ArrowDown: () => viewer.stepTrack(1) }[key]);
    if (!action || !viewer.model.runs.length) return undefined;
    event.preventDefault();
    return action();
  };
}

function helpDialog() {
  return el("dialog", { class: "ss-help", "aria-label": "Keys" }, el("h3", {}, "Keys"),
    el("dl", {}, KEYS.map(([keys, effect]) => el("div", {},
      el("dt", {}, keys.split(" ").map((key) => el("kbd", {}, key))), el("dd", {}, effect)))),
    el("form", { method: "dialog" }, el("button", { class: "ss-button ss-wide-button" }, "Close")));
}
