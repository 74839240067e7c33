// Helpers that make elements. Text is always inserted as text, never as markup.

/** Make an element: el("button", {class: "ss-x", onclick: f}, "text", child, ...) */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  setProps(node, props);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function setProps(node, props) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
}

/** Properties of a box that scrolls: the keyboard reaches it, and a screen reader names it. */
const scrolls = (label) => ({ tabindex: "0", role: "group", "aria-label": label });

/**
 * Show a popover beside a rectangle of the viewport: below it where it fits, else above it, else over it.
 *
 * It is in the top layer, above all else on the page and uncut by any box, and scrolls with the page.
 */
function lift(node, { left, top, bottom }) {
  if (!node.matches(":popover-open")) node.showPopover();
  const { offsetWidth: width, offsetHeight: height } = node;
  const [across, down] = [document.documentElement.clientWidth, window.innerHeight];
  const above = top - height - 8;
  const y = bottom + 8 + height <= down ? Math.max(8, bottom + 8) : above >= 0 && above + height <= down ? above : down - height - 8;
  node.style.left = `${Math.max(8, Math.min(left, across - width - 8)) + window.scrollX}px`;
  node.style.top = `${Math.max(8, y) + window.scrollY}px`;
}

function lower(node) {
  if (node.matches(":popover-open")) node.hidePopover();
}

/** An icon: one path in a box of 16 x 16. */
function icon(path) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  setProps(svg, { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true", class: "ss-icon" });
  const shape = document.createElementNS(ns, "path");
  setProps(shape, { d: path, fill: "currentColor" });
  svg.append(shape);
  return svg;
}

const SPACE = "\u2009"; // thin: between thousands, before units

function number(value, decimals) {
  const [whole, part] = Math.abs(value).toFixed(decimals).split(".");
  const grouped = whole.length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, SPACE) : whole;
  const sign = value < 0 && Number(value.toFixed(decimals)) !== 0 ? "−" : "";
  return sign + grouped + (part ? `.${part}` : "");
}

/** A time in milliseconds; from 10,000 on in seconds. */
function ms(value) {
  const size = Math.abs(value);
  if (size >= 10000) return `${number(value / 1000, 2)} s`;
  return `${number(value, size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)} ms`;
}

function probability(value) {
  if (value === null || value === undefined) return "–";
  return value !== 0 && value < 0.001 ? value.toExponential(1).replace("-", "−") : value.toFixed(3);
}

/** A token's text in quotes, with visible signs for spaces, tabs and line breaks. */
function quoted(text) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
  return text === "" ? "(no text)" : `“${shown}”`;
}

const runName = (run) => (run.config ? `${run.title} · ${run.config}` : run.title);

/** A function that runs `action` at most once per `wait` ms, and always after the last call. */
function throttled(action, wait) {
  let timer = 0;
  let next = 0;
  const call = () => {
    timer = 0;
    next = performance.now() + wait;
    action();
  };
  const later = () => {
    if (!timer) timer = setTimeout(call, Math.max(0, next - performance.now()));
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}
