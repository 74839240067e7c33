// The method picker: groups, search, presets, and the settings of each chosen method beside it.
"use strict";

window.SpecScopePicker = (() => {
  let contents = { pairs: {}, methods: [] };
  let picker = null;

  const node = (...parts) => SpecScope.el(...parts);

  const read = (value) => {
    try {
      const { pair = "", chosen = [] } = JSON.parse(value || "{}");
      return { pair, chosen };
    } catch {
      return { pair: "", chosen: [] };
    }
  };
  const reasonsOf = (pair) => contents.pairs[pair]?.reasons ?? {};
  const keysOf = (chosen) => chosen.map((row) => row.method).sort().join();
  const plain = (keys) => keys.map((method) => ({ method, config: {} }));

  /** Return the picker's value for other models: a choice that the user made stays if they can run it. */
  function offer(models, value) {
    const { pair: before, chosen } = read(value);
    const pair = contents.pairs[models] ? models : "";
    const untouched = Object.values(contents.pairs).some((other) => keysOf(plain(other.usual)) === keysOf(chosen));
    const able = chosen.every((row) => !reasonsOf(pair)[row.method]);
    const keep = !pair || pair === before || (able && !untouched);
    return JSON.stringify({ pair, chosen: keep ? chosen : plain(contents.pairs[pair].usual) });
  }

  class Picker {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.open = new Set(); // settings that are unfolded, by row
      this.unfolded = new Set(matchMedia("(min-width: 900px)").matches ? contents.groups : []); // groups that are open
      this.search = node("input", { type: "search", class: "app-picker-search", placeholder: "Search methods", "aria-label": "Search methods", oninput: () => this.filter() });
      this.count = node("span", { class: "app-note", role: "status" });
      this.presets = node("div", { class: "app-picker-presets", role: "group", "aria-label": "Presets" });
      this.groups = node("div", { class: "app-picker-groups" });
      this.missing = node("div", { id: "unlisted" });
      root.replaceChildren(node("div", { class: "app-picker-bar" }, this.presets, this.search, this.count), this.groups, this.missing);
      this.draw();
    }

    get state() {
      return read(this.props.value);
    }

    /** Store a choice; `redraw` is false while the user types a setting. */
    set(chosen, redraw = true) {
      this.drawn = JSON.stringify({ pair: this.state.pair, chosen });
      this.props.value = this.drawn;
      if (redraw) this.draw();
    }

    changed() {
      if (this.props.value !== this.drawn) this.draw();
    }

    draw() {
      const { pair, chosen } = this.state;
      this.drawn = this.props.value;
      const reasons = reasonsOf(pair);
      const focus = document.activeElement?.dataset?.pick;
      this.count.textContent = `${chosen.length} of at most ${contents.most} chosen`;
      this.presets.replaceChildren(...this.presetButtons(pair, reasons));
      const used = new Set(chosen.map((row) => contents.methods.find((m) => m.key === row.method)?.group));
      for (const group of used) this.unfolded.add(group);
      this.groups.replaceChildren(...contents.groups.map((group) => this.group(group, chosen, reasons)).filter(Boolean));
      this.missing.replaceChildren(...this.left(pair, reasons));
      this.filter();
      if (focus) this.root.querySelector(`[data-pick="${CSS.escape(focus)}"]`)?.focus();
    }

    presetButtons(pair, reasons) {
      const usual = contents.pairs[pair]?.usual;
      const presets = [...(usual ? [{ title: "usual", methods: usual }] : []), ...contents.presets];
      return presets.map(({ title, methods }) => {
        const able = methods.filter((key) => !reasons[key]);
        const without = methods.filter((key) => reasons[key]).map((key) => this.title(key));
        return node("button", {
          type: "button", class: "app-chip", "data-pick": `preset ${title}`,
          title: without.length ? `Without ${without.join(", ")}, which this pair cannot run.` : methods.map((key) => this.title(key)).join(", "),
          onclick: () => this.set(plain(able)),
        }, title);
      });
    }

    /** Show the control of a setting, `<method>-<setting>` or `<method>-<number>-<setting>`. */
    reveal(id) {
      const [key, number] = id.split("-");
      const method = contents.methods.find((one) => one.key === key);
      if (!method) return;
      this.open.add(`${key} ${(Number(number) || 1) - 1}`);
      this.unfolded.add(method.group);
      this.search.value = "";
      this.draw();
    }

    title(key) {
      return contents.methods.find((method) => method.key === key)?.title ?? key;
    }

    group(group, chosen, reasons) {
      const rows = contents.methods.filter((method) => method.group === group && !reasons[method.key]);
      if (!rows.length) return null;
      const fold = node("details", { class: "app-picker-group", open: this.unfolded.has(group) },
        node("summary", {}, node("h3", {}, group), node("span", { class: "app-note" }, String(rows.length))),
        rows.map((method) => this.row(method, chosen)));
      fold.addEventListener("toggle", () => {
        if (this.search.value) return;
        if (fold.open) this.unfolded.add(group);
        else this.unfolded.delete(group);
      });
      return fold;
    }

    row(method, chosen) {
      const mine = chosen.filter((row) => row.method === method.key);
      const full = chosen.length >= contents.most;
      const box = node("input", { type: "checkbox", checked: mine.length > 0, disabled: !mine.length && full, "data-pick": method.key,
        "aria-describedby": `about-${method.key}`, onchange: () => this.toggle(method, box.checked) });
      return node("div", { class: "app-picker-row", "data-search": `${method.title} ${method.key} ${method.line} ${method.source} ${method.group}`.toLowerCase() },
        node("label", {}, box, node("b", {}, method.title)),
        node("p", { id: `about-${method.key}`, class: "app-note", title: method.source }, method.line),
        mine.map((row, i) => this.instance(method, row, i, mine.length, !full && i === mine.length - 1)));
    }

    toggle(method, on) {
      const { chosen } = this.state;
      const order = contents.methods.map((m) => m.key);
      const others = chosen.filter((row) => row.method !== method.key);
      const next = on ? [...others, { method: method.key, config: {} }] : others;
      this.set(this.sorted(next, order));
    }

    /** Plain decoding first, then in the order of the groups. */
    sorted(rows, order) {
      const place = (row) => {
        const method = contents.methods.find((m) => m.key === row.method);
        return [contents.groups.indexOf(method.group), order.indexOf(row.method)];
      };
      return [...rows].sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1]);
    }

    again(method, row) {
      const { chosen } = this.state;
      const at = chosen.findLastIndex((other) => other.method === method.key);
      const copy = { ...row, config: { ...row.config } };
      this.open.add(`${method.key} ${chosen.filter((other) => other.method === method.key).length}`);
      this.set([...chosen.slice(0, at + 1), copy, ...chosen.slice(at + 1)]);
    }

    /** The settings of one chosen run of a method. */
    instance(method, row, i, count, more) {
      if (!method.settings.length) return null;
      const name = `${method.key} ${i}`;
      const body = node("div", { class: "app-picker-settings", hidden: !this.open.has(name) });
      const words = ({ config }) => {
        const shown = method.settings.filter((s) => s.name in config && config[s.name] !== s.default).map((s) => `${s.name} ${config[s.name]}`);
        return shown.length ? `settings: ${shown.join(" · ")}` : "settings";
      };
      const renamed = (changed) => { button.textContent = words(changed); };
      const label = count > 1 ? `${method.title} ${i + 1}: settings` : `${method.title}: settings`;
      const button = node("button", { type: "button", class: "app-link", "aria-label": label, "aria-expanded": String(!body.hidden), "data-pick": `fold ${name}`,
        onclick: () => {
          body.hidden = !body.hidden;
          button.setAttribute("aria-expanded", String(!body.hidden));
          this.open[body.hidden ? "delete" : "add"](name);
          if (!body.hidden && !body.childElementCount) body.append(...this.fields(method, i, row, renamed));
        } }, words(row));
      const remove = count > 1 ? node("button", { type: "button", class: "app-link", "aria-label": `Remove ${method.title} ${i + 1}`, onclick: () => this.remove(method, i) }, "remove") : null;
      const again = more ? node("button", { type: "button", class: "app-link", "data-pick": `again ${method.key}`, onclick: () => this.again(method, row) }, "once more with other settings") : null;
      if (!body.hidden) body.append(...this.fields(method, i, row, renamed));
      return node("div", { class: "app-picker-run" }, node("div", {}, button, remove, again), body);
    }

    remove(method, i) {
      let seen = -1;
      this.set(this.state.chosen.filter((row) => row.method !== method.key || ++seen !== i));
    }

    /** Change the i-th chosen run of a method; return it. */
    change(method, i, edit) {
      let seen = -1;
      this.set(this.state.chosen.map((row) => (row.method === method.key && ++seen === i ? edit(row) : row)), false);
      return this.state.chosen.filter((row) => row.method === method.key)[i];
    }

    fields(method, i, row, renamed) {
      const id = (name) => (i ? `${method.key}-${i + 1}-${name}` : `${method.key}-${name}`);
      const put = (name, value) => renamed(this.change(method, i, (old) => ({ ...old, config: { ...old.config, [name]: value } })));
      const made = method.settings.map((setting) => field(setting, id(setting.name), row.config[setting.name] ?? setting.default, (value) => put(setting.name, value)));
      return method.batched ? [...made, this.further(method, i, row, id)] : made;
    }

    /** Further prompts of a batch, typed or filled in from samples. */
    further(method, i, row, id) {
      const put = () => this.change(method, i, (old) => ({ ...old, prompts: box.value }));
      const box = node("textarea", { id: id("prompts"), rows: 4, "aria-label": "further prompts", oninput: put });
      box.value = row.prompts ?? "";
      const count = node("input", { type: "number", min: 1, max: contents.samples.length, value: Math.min(7, contents.samples.length), "aria-label": "samples", id: id("samples") });
      const fill = node("button", { type: "button", class: "ss-button", id: id("fill"), onclick: () => {
        box.value = contents.samples.slice(0, Number(count.value)).join("\n\n");
        put();
      } }, "Fill with samples");
      return node("div", { class: "app-field app-field-wide" }, node("label", { for: id("prompts") }, "further prompts"), box,
        node("p", { class: "app-note" }, "Decoded in the same run as the prompt above, and once more plainly, which is the baseline. Separate prompts by blank lines."),
        node("div", { class: "app-picker-fill" }, count, fill));
    }

    left(pair, reasons) {
      const keys = Object.keys(reasons);
      if (!keys.length) return [];
      const word = keys.length > 1 ? "methods" : "method";
      return [node("details", { class: "app-fold-plain" }, node("summary", {}, `${contents.pairs[pair].title} cannot run ${keys.length} ${word}`),
        node("ul", {}, keys.map((key) => node("li", {}, node("b", {}, this.title(key)), ` ${reasons[key]}`))))];
    }

    filter() {
      const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const fold of this.groups.children) {
        const rows = [...fold.querySelectorAll(".app-picker-row")];
        for (const row of rows) row.hidden = !words.every((word) => row.dataset.search.includes(word));
        fold.hidden = rows.every((row) => row.hidden);
        fold.open = words.length > 0 || this.unfolded.has(fold.querySelector("h3").textContent);
      }
    }
  }

  /** The control of a setting. A value that is no number is sent as typed; the server names the error. */
  function field(setting, id, value, put) {
    const { kind, label, doc, low, high, choices } = setting;
    const number = kind === "whole" || kind === "number";
    let control;
    if (kind === "flag") {
      control = node("input", { type: "checkbox", id, checked: value, onchange: () => put(control.checked) });
    } else if (kind === "choice") {
      control = node("select", { id, onchange: () => put(control.value) }, choices.map(([choice, name]) => node("option", { value: choice, selected: choice === value }, name)));
    } else if (number) {
      control = node("input", { type: "number", id, min: low, max: high, step: kind === "whole" ? 1 : "any", value,
        oninput: () => put(control.value === "" ? "" : Number(control.value)) });
    } else {
      control = node(kind === "line" ? "input" : "textarea", { id, rows: kind === "line" ? null : 3, type: kind === "line" ? "text" : null, oninput: () => put(control.value) });
      control.value = value;
    }
    const wide = kind === "text" || kind === "line" ? " app-field-wide" : "";
    return node("div", { class: `app-field app-field-${kind}${wide}` }, node("label", { for: id }, label), control, node("p", { class: "app-note" }, doc));
  }

  /** Show the picker; `watch` calls back when the server or another control sets its value. */
  function mount(element, props, watch, given) {
    contents = given;
    picker = new Picker(element.querySelector(".app-picker-root"), props);
    watch("value", () => picker.changed());
  }

  return { mount, offer, reveal: (id) => picker?.reveal(id) };
})();
