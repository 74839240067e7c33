// The choice of tracks: which ones the timeline shows, in which order, and which ones are pinned above it.

const keyOf = (run, track) => `${run.id}/${track.device}`;

class TrackChoice {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    this.hidden = new Set(); // "run/device"
    this.orders = new Map(); // devices by run id
    this.pinned = []; // "run/device", in the order of pinning
    this.list = el("div", { class: "ss-menu-list", popover: "manual" });
    this.node = el("details", { class: "ss-menu" }, el("summary", { class: "ss-button ss-wide-button", title: "Show, hide, move and pin tracks" }, "tracks"), this.list);
    this.node.addEventListener("toggle", () => {
      if (this.node.open) lift(this.list, this.node.getBoundingClientRect());
      else lower(this.list);
    });
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.node.open) return;
      event.stopPropagation();
      this.node.open = false;
      this.node.firstChild.focus();
    });
  }

  /** The tracks of a run in the chosen order; without the hidden ones unless `all`. */
  of(run, all = false) {
    const order = this.orders.get(run.id) ?? [];
    const place = (track) => (order.includes(track.device) ? order.indexOf(track.device) : order.length);
    return [...run.tracks].sort((a, b) => place(a) - place(b)).filter((track) => all || !this.hidden.has(keyOf(run, track)));
  }

  /** The pinned tracks that the model has, as {run, track}. */
  pins(model) {
    const all = model.runs.flatMap((run) => run.tracks.map((track) => ({ run, track })));
    return this.pinned.map((key) => all.find(({ run, track }) => keyOf(run, track) === key)).filter(Boolean);
  }

  /** Pin or free a track; by default the other of the two. Return whether the track is pinned now. */
  pin(run, track, on = !this.pinned.includes(keyOf(run, track))) {
    const key = keyOf(run, track);
    this.pinned = [...this.pinned.filter((other) => other !== key), ...(on ? [key] : [])];
    this.update(this.model);
    this.changed();
    return on;
  }

  update(model) {
    this.model = model;
    this.node.hidden = !model.runs.some((run) => run.timed && run.tracks.length);
    const lines = model.runs.flatMap((run) => [el("h4", {}, runName(run)), ...this.of(run, true).map((track, i) => this.line(run, track, i))]);
    const focus = this.list.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    this.list.replaceChildren(...lines);
    const node = focus && this.list.querySelector(`[data-key="${CSS.escape(focus)}"]`);
    if (node) (node.disabled ? node.closest(".ss-menu-line").querySelector("input") : node).focus();
  }

  line(run, track, i) {
    const key = keyOf(run, track);
    const box = el("input", { type: "checkbox", checked: !this.hidden.has(key), "data-key": key, onchange: () => this.show(key, box.checked) });
    const up = el("button", { type: "button", class: "ss-button", "aria-label": `Move ${track.label} up`, title: "Move up", disabled: i === 0, "data-key": `${key} up`,
      onclick: () => this.raise(run, i) }, "↑");
    const on = this.pinned.includes(key);
    const pin = el("button", { type: "button", class: "ss-button", "aria-label": `Pin ${track.label}`, "aria-pressed": String(on), title: on ? "Unpin" : "Pin above the timeline ( t )",
      "data-key": `${key} pin`, onclick: () => this.pin(run, track) }, "pin");
    return el("div", { class: "ss-menu-line" }, el("label", { class: "ss-check" }, box, track.label), el("span", { class: "ss-menu-acts" }, pin, up));
  }

  show(key, on) {
    if (on) this.hidden.delete(key);
    else this.hidden.add(key);
    this.changed();
  }

  raise(run, i) {
    const order = this.of(run, true).map((track) => track.device);
    [order[i - 1], order[i]] = [order[i], order[i - 1]];
    this.orders.set(run.id, order);
    this.update(this.model);
    this.changed();
  }
}
