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

/** Place an element by pixels: left, top, width, height; those undefined stay. */
function put(node, places) {
  for (const [name, value] of Object.entries(places)) if (value !== undefined) node.style[name] = `${value}px`;
  return node;
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
  put(node, { left: Math.max(8, Math.min(left, across - width - 8)) + window.scrollX, top: Math.max(8, y) + window.scrollY });
}

function lower(node) {
  if (node.matches(":popover-open")) node.hidePopover();
}

/** Make an SVG element. */
function drawn(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setProps(node, props);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** An icon: one path in a box of 16 x 16. */
const icon = (path) => drawn("svg", { viewBox: "0 0 16 16", width: 14, height: 14, "aria-hidden": "true", class: "ss-icon" }, drawn("path", { d: path, fill: "currentColor" }));

const badge = (text, look = "", title) => el("span", { class: `ss-badge ${look}`.trim(), title }, text);

/** A fold named by its summary; `look` is the class of the box that scrolls in it. */
const fold = (name, look, ...content) => el("details", { class: "ss-fold" }, el("summary", {}, name), el("div", { class: look, ...scrolls(name) }, content));

/** A legend of [look of the swatch, words]; an item may be an element, or missing. */
function legendOf(name, items, look = "ss-legend") {
  const item = ([swatch, words]) => el("li", {}, el("i", { class: `ss-swatch ${swatch}`, "aria-hidden": "true" }), words);
  return el("ul", { class: look, "aria-label": name }, items.filter(Boolean).map((one) => (Array.isArray(one) ? item(one) : one)));
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

/** A number of things: "1 token", "2 tokens". */
const some = (count, noun) => `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;

const modified = (event) => event.ctrlKey || event.metaKey || event.altKey;

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
