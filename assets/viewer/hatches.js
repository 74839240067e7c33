// The colours of the theme as canvas styles: plain ones, and hatches.

const COLOURS = [
  "ink", "muted", "line", "card", "grid", "hatch", "accepted", "rejected", "bonus", "strip-draft", "strip-verify",
  ...Object.keys(KINDS).flatMap((kind) => [kind, `${kind}-edge`]),
  ...BAND_KINDS.map((kind) => `band-${kind}`),
  ...REASONS.map((reason) => `wait-${reason}`),
];

/** The resolved value of every colour: a canvas does not read CSS variables. */
function coloursOf(root) {
  const probe = el("span", { hidden: true });
  root.append(probe);
  const values = COLOURS.map((name) => {
    probe.style.color = `var(--ss-${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(values);
}

/**
 * The hatches of a theme, as patterns: `wait`, and functions of a span's kind: `lost`, `cancelled`, `striped`.
 *
 * `ratio` is the number of device pixels per pixel. `move(x)` shifts the patterns with the window.
 */
function hatchesOf(colours, ratio) {
  const made = new Map();
  const once = (name, ...look) => {
    if (!made.has(name)) made.set(name, hatch(ratio, ...look));
    return made.get(name);
  };
  return {
    get wait() { return once("wait", "/", 7, 1.1, colours.hatch); },
    lost: (kind) => once(`lost ${kind}`, "x", 6, 1, colours[`${kind}-edge`], colours[kind]),
    cancelled: (kind) => once(`cancelled ${kind}`, "/", 6, 2, colours[kind], colours.card),
    striped: (kind) => once(`striped ${kind}`, "|", 5, 1.4, colours[`${kind}-edge`], colours[kind]),
    move: (x) => made.forEach((pattern) => pattern.moveTo(x)),
  };
}

/** A pattern of lines: shape `/`, `x` or `|`, with lines `width` wide and `size` pixels apart, on a ground or none. */
function hatch(ratio, shape, size, width, colour, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(size * ratio);
  const ctx = tile.getContext("2d");
  ctx.scale(tile.width / size, tile.width / size);
  if (ground) {
    ctx.fillStyle = ground;
    ctx.fillRect(0, 0, size, size);
  }
  ctx.strokeStyle = colour;
  ctx.lineWidth = width;
  ctx.beginPath();
  for (const shift of [-size, 0, size]) {
    if (shape === "|") ctx.moveTo(size / 2, 0), ctx.lineTo(size / 2, size);
    else ctx.moveTo(shift - 1, size + 1), ctx.lineTo(shift + size + 1, -1);
    if (shape === "x") ctx.moveTo(shift - 1, -1), ctx.lineTo(shift + size + 1, size + 1);
  }
  ctx.stroke();
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.tile = tile;
  pattern.moveTo = (x) => {
    pattern.shift = Math.round((x % tile.width) * ratio); // device pixels
    pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, pattern.shift / ratio, 0]));
  };
  pattern.moveTo(0);
  return pattern;
}
