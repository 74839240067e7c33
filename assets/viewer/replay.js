// Replay: one time for all runs, set by the slider, the buttons or the play loop.

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 5, 10];
const ICONS = {
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 2.5h3v11H4zM9 2.5h3v11H9z",
  back: "M11 2.5v11L4.5 8zM3 2.5h1.6v11H3z",
  next: "M5 2.5v11L11.5 8zM11.4 2.5H13v11h-1.6z",
  reject: "M1.5 3v10L6.5 8zM7.4 5.4l1-1 2.4 2.4 2.4-2.4 1 1L11.8 7.8l2.4 2.4-1 1-2.4-2.4-2.4 2.4-1-1 2.4-2.4z",
};

class Replay {
  /**
   * `seek(t)` is called with every new time, `reveal(t)` after a step to it; `start(direction)` is the time from which
   * the next rejection is looked for.
   */
  constructor(seek, reveal, start) {
    Object.assign(this, { seek, reveal, start });
    this.t = 0;
    this.playing = false;
    const button = (name, label, action) => el("button", { type: "button", class: "ss-button", "aria-label": label, title: label, onclick: action }, icon(ICONS[name]));
    this.toggle = button("play", "Play", () => this.play(!this.playing));
    this.slider = el("input", { type: "range", class: "ss-slider", "aria-label": "Time since decoding began", step: "any",
      oninput: () => { this.play(false); this.to(Number(this.slider.value)); } });
    this.clock = el("output", { class: "ss-clock" });
    this.speed = el("select", { class: "ss-select", "aria-label": "Replay speed" },
      SPEEDS.map((s) => el("option", { value: s, selected: s === 1 }, `${s}×`)));
    this.node = el("div", { class: "ss-replay", role: "group", "aria-label": "Replay" },
      button("back", "Previous commit ( [ )", () => this.step("commits", -1)), this.toggle,
      button("next", "Next commit ( ] )", () => this.step("commits", 1)),
      button("reject", "Next rejection ( n )", () => this.step("rejections", 1)),
      this.slider, this.clock, this.speed);
  }

  update(model) {
    // while runs go on, the axis grows between two documents
    const atEnd = !this.model || this.model.state === "live" || this.t >= this.model.axis.max;
    this.model = model;
    this.slider.min = Math.min(0, model.axis.min);
    this.slider.max = model.axis.max;
    this.node.hidden = model.state !== "ready" || !model.runs.some((run) => run.timed);
    if (model.state !== "ready") this.play(false);
    this.to(atEnd ? model.axis.max : this.t);
  }

  to(t) {
    this.t = Math.max(Number(this.slider.min), Math.min(this.model.axis.max, t));
    this.slider.value = this.t;
    this.slider.style.setProperty("--ss-done", `${(100 * (this.t - this.slider.min)) / (this.slider.max - this.slider.min || 1)}%`);
    this.clock.textContent = `${this.model.axis.max < 10000 ? number(this.t, 0) : ms(this.t)} / ${ms(this.model.axis.max)}`;
    this.slider.setAttribute("aria-valuetext", ms(this.t));
    this.seek(this.t);
  }

  step(kind, direction) {
    this.play(false);
    const rejections = kind === "rejections";
    const t = neighbour(moments(this.model, kind), rejections ? this.start(direction) : this.t, direction);
    if (t === undefined && (rejections || direction > 0)) return;
    this.to(t ?? 0);
    this.reveal(this.t);
  }

  /** Play all of it once, at the speed that takes about `seconds`; not for readers who want little motion. */
  race(seconds = 8) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches || this.node.hidden) return;
    const speed = SPEEDS.find((s) => this.model.axis.max / s <= 1000 * seconds) ?? SPEEDS.at(-1);
    this.speed.value = String(speed);
    this.play(false);
    this.to(0);
    this.play(true);
    this.node.dataset.races = String(1 + Number(this.node.dataset.races ?? 0)); // for tests
  }

  play(on) {
    if (this.playing === on) return;
    this.playing = on;
    this.toggle.replaceChildren(icon(on ? ICONS.pause : ICONS.play));
    this.toggle.setAttribute("aria-label", on ? "Pause" : "Play");
    this.toggle.title = on ? "Pause" : "Play";
    cancelAnimationFrame(this.frame);
    if (!on) return;
    if (this.t >= this.model.axis.max) this.to(0);
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let last = performance.now();
    const tick = (now) => {
      this.frame = requestAnimationFrame(tick);
      if (calm && now - last < 500) return;
      this.to(this.t + (now - last) * Number(this.speed.value));
      last = now;
      if (this.t >= this.model.axis.max) this.play(false);
    };
    this.frame = requestAnimationFrame(tick);
  }
}
