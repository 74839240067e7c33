// Rectangles in memory. While the window moves, the timeline is painted here and copied to its canvas as one image: a
// canvas without a GPU takes several times as long for thousands of rectangles. Sides are whole device pixels; top and
// bottom are blended. When the window rests, the canvas paints the exact edges.

/** The part of a canvas context that the painters of the timeline use. `ctx` is the context of the canvas itself. */
class Raster {
  constructor(ctx, ratio) {
    const { width, height } = ctx.canvas;
    Object.assign(this, { ctx, ratio, wide: width, high: height, top: 0, kept: 0, texts: [] });
    this.image = new ImageData(width, height);
    this.data = new Uint32Array(this.image.data.buffer);
    this.pixels = new Map(); // {colour, alpha}, or {size, tile} of a hatch, by style
    this.stamps = new Map(); // pixels of marks, by outcome and size
  }

  /** Begin a frame: the cards are opaque, all else is clear. */
  begin({ cards }, ground) {
    this.data.fill(0);
    this.texts.length = 0;
    this.fillStyle = ground;
    for (const { body, bodyHeight } of cards) this.fillRect(0, body - 3, this.wide / this.ratio, bodyHeight + SIZE.axis);
  }

  /** Copy the frame to the canvas, and write the texts above it. */
  end() {
    const { ctx } = this;
    ctx.putImageData(this.image, 0, 0);
    for (const [text, x, y, fillStyle, font, textAlign, textBaseline] of this.texts) {
      Object.assign(ctx, { fillStyle, font, textAlign, textBaseline });
      ctx.fillText(text, x, y);
    }
  }

  save() { this.kept = this.top; }

  restore() { this.top = this.kept; }

  translate(x, y) { this.top += y; }

  measureText(text) { return this.ctx.measureText(text); }

  fillText(text, x, y) {
    this.texts.push([text, x, y + this.top, this.fillStyle, this.font, this.textAlign, this.textBaseline]);
  }

  strokeRect(x, y, width, height) {
    const fill = this.fillStyle;
    this.fillStyle = this.strokeStyle;
    this.fillRect(x - 0.5, y - 0.5, width + 1, 1);
    this.fillRect(x - 0.5, y + height - 0.5, width + 1, 1);
    this.fillRect(x - 0.5, y - 0.5, 1, height + 1);
    this.fillRect(x + width - 0.5, y - 0.5, 1, height + 1);
    this.fillStyle = fill;
  }

  fillRect(x, y, width, height) {
    const { ratio, wide, high } = this;
    const left = Math.max(0, Math.round(x * ratio));
    const right = Math.min(wide, Math.round((x + width) * ratio));
    const low = Math.max(0, (y + this.top) * ratio);
    const end = Math.min(high, (y + this.top + height) * ratio);
    if (right <= left || end <= low) return;
    const paint = this.paintOf(this.fillStyle);
    const [first, last] = [Math.ceil(low), Math.floor(end)]; // the rows that it fills
    if (last < first) return this.fillRow(paint, last, left, right, end - low);
    if (first > low) this.fillRow(paint, first - 1, left, right, first - low);
    if (end > last) this.fillRow(paint, last, left, right, end - last);
    if (paint.alpha !== 256) for (let row = first; row < last; row++) this.fillRow(paint, row, left, right, 1);
    else if (right - left > 16) for (let row = first; row < last; row++) this.data.fill(paint.colour, row * wide + left, row * wide + right);
    else {
      const { data } = this;
      const { colour } = paint;
      for (let row = first; row < last; row++) for (let i = row * wide + left; i < row * wide + right; i++) data[i] = colour;
    }
  }

  /** Blend a style into a part of a row of device pixels; `cover` is the share of the row's height. */
  fillRow(paint, row, left, right, cover) {
    const { data } = this;
    const [first, last] = [row * this.wide + left, row * this.wide + right];
    if (!paint.tile) {
      const share = Math.round(cover * paint.alpha);
      for (let i = first; i < last; i++) data[i] = mixed(data[i], paint.colour, share);
      return;
    }
    const { size, tile } = paint;
    const line = (row % size) * size;
    let column = (((left - this.fillStyle.shift) % size) + size) % size;
    for (let i = first; i < last; i++) {
      const own = tile[line + column];
      const share = Math.round(cover * alphaOf(own));
      if (share > 0) data[i] = share === 256 ? own : mixed(data[i], own, share);
      if (++column === size) column = 0;
    }
  }

  /** The pixels of a style: a colour, or a hatch with its `tile`. */
  paintOf(style) {
    let paint = this.pixels.get(style);
    if (!paint) {
      paint = style.tile ? { size: style.tile.width, tile: pixelsOf(style.tile.getContext("2d")) } : colourOf(style);
      this.pixels.set(style, paint);
    }
    return paint;
  }

  /** Put a mark's picture around a place; `draw(ctx, middle)` draws it once. */
  stamp(name, size, x, y, draw) {
    const { ratio, data, wide, high } = this;
    const key = `${name} ${size.toFixed(1)}`;
    if (!this.stamps.has(key)) this.stamps.set(key, stampOf(size, ratio, draw));
    const { side, pixels } = this.stamps.get(key);
    const [left, top] = [Math.round(x * ratio - side / 2), Math.round((y + this.top) * ratio - side / 2)];
    for (let row = Math.max(0, -top); row < side && top + row < high; row++) {
      for (let column = Math.max(0, -left); column < side && left + column < wide; column++) {
        const own = pixels[row * side + column];
        const at = (top + row) * wide + left + column;
        if (own >>> 24) data[at] = mixed(data[at], own, alphaOf(own));
      }
    }
  }
}

/** A colour over an opaque one, with a share of 256. */
function mixed(under, over, share) {
  const rest = 256 - share;
  const redBlue = (((over & 0xff00ff) * share + (under & 0xff00ff) * rest) / 256) & 0xff00ff;
  const green = (((over & 0xff00) * share + (under & 0xff00) * rest) / 256) & 0xff00;
  return (0xff000000 | redBlue | green) >>> 0;
}

/** The alpha of a pixel, 256 for an opaque one. */
const alphaOf = (pixel) => (pixel >>> 24) + (pixel >>> 31);

const pixelsOf = (ctx) => new Uint32Array(ctx.getImageData(0, 0, ctx.canvas.width, ctx.canvas.height).data.buffer);

/** A canvas that is read once. */
function scratch(side) {
  const canvas = el("canvas", { width: side, height: side });
  return canvas.getContext("2d", { willReadFrequently: true });
}

function colourOf(style) {
  const ctx = scratch(1);
  ctx.fillStyle = style;
  ctx.fillRect(0, 0, 1, 1);
  const [pixel] = pixelsOf(ctx);
  return { colour: (pixel | 0xff000000) >>> 0, alpha: alphaOf(pixel) };
}

function stampOf(size, ratio, draw) {
  const side = Math.ceil((size + 3) * ratio);
  const ctx = scratch(side);
  ctx.scale(ratio, ratio);
  draw(ctx, side / ratio / 2);
  return { side, pixels: pixelsOf(ctx) };
}
