// The map above the timeline: the whole time of all runs, and the window in it, which can be dragged.

const MAP = { row: 6, gap: 2, edge: 7 };

class Minimap {
  constructor(gantt) {
    this.gantt = gantt;
    this.canvas = el("canvas", {});
    this.frame = el("div", { class: "ss-map-window" });
    this.plot = el("div", { class: "ss-map-plot" }, this.canvas, this.frame);
    this.node = el("div", { class: "ss-map", "aria-hidden": "true" }, this.plot);
    this.plot.addEventListener("pointerdown", (event) => this.press(event));
    this.plot.addEventListener("dblclick", () => this.gantt.fit());
  }

  update(model) {
    this.model = model;
    this.runs = model.runs.filter((run) => run.band.length || run.long);
    this.node.hidden = !this.runs.length;
    this.plot.style.height = `${this.runs.length * (MAP.row + MAP.gap) + MAP.gap}px`;
    this.range = fitWindow(model);
  }

  draw(colours, ratio) {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (this.node.hidden || !width) return;
    const same = this.drawn?.model === this.model && this.drawn.colours === colours && this.drawn.width === width && this.drawn.ratio === ratio;
    if (!same) {
      this.drawn = { model: this.model, colours, width, ratio };
      const scene = sceneOn(this.canvas, width, height, ratio, this.range, { colours });
      scene.ctx.clearRect(0, 0, width, height);
      const styles = BAND_KINDS.map((kind) => ({ fill: colours[`band-${kind}`] }));
      this.runs.forEach((run, i) => {
        const top = MAP.gap + i * (MAP.row + MAP.gap);
        if (run.band.length) paintLine(scene, bandLine(run), top, MAP.row, styles);
        else paintWork(scene, run, top, MAP.row / 2);
      });
    }
    this.place();
  }

  /** Put the frame around the timeline's window. */
  place() {
    const [low, high] = this.gantt.range.map((t) => Math.max(0, Math.min(1, this.share(t))));
    this.frame.style.left = `${100 * low}%`;
    this.frame.style.width = `${100 * (high - low)}%`;
  }

  share(t) {
    return (t - this.range[0]) / (this.range[1] - this.range[0]);
  }

  /** Move the window or one of its edges with the pointer; outside of it, the window jumps there first. */
  press(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    const { left, width } = this.plot.getBoundingClientRect();
    const time = (e) => this.range[0] + ((e.clientX - left) / width) * (this.range[1] - this.range[0]);
    const edge = (MAP.edge / width) * (this.range[1] - this.range[0]);
    let [from, to] = this.gantt.range;
    const begun = time(event);
    const [atFrom, atTo] = [Math.abs(begun - from) < edge, Math.abs(begun - to) < edge];
    if (!atFrom && !atTo && (begun < from || begun > to)) {
      [from, to] = [begun - (to - from) / 2, begun + (to - from) / 2];
      this.gantt.zoomTo(from, to);
    }
    const move = (e) => {
      const way = time(e) - begun;
      if (atFrom) this.gantt.zoomTo(Math.min(from + way, to - LEAST), to);
      else if (atTo) this.gantt.zoomTo(from, Math.max(to + way, from + LEAST));
      else this.gantt.zoomTo(from + way, to + way);
    };
    const end = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", end);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
  }
}

/** Paint a run whose band is not here yet: above what the drafter does, below the target. */
function paintWork(scene, run, top, height) {
  for (const track of run.tracks) {
    const drafts = track.role === "drafter";
    const { lines, looks } = lanesOf(track);
    const styles = looks.map(() => ({ fill: scene.colours[drafts ? "draft" : "verify"] }));
    for (const line of lines) paintLine(scene, line, drafts ? top : top + height, height, styles);
  }
}
