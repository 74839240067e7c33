// Charts: draws the figures that app/render/html.py writes. Used by the page and by the file of a sweep.
"use strict";

window.SpecScopeCharts = {
  /** Draw the figures inside an element, in the colours of the page's theme. */
  draw(element, { react }) {
    for (const node of element.querySelectorAll("[data-figure]")) {
      const { data, layout } = JSON.parse(node.dataset.figure);
      const style = getComputedStyle(node);
      const colour = (name) => style.getPropertyValue(name); // `color` itself may be in transition
      const axis = { gridcolor: colour("--app-line"), zerolinecolor: colour("--app-line"), linecolor: colour("--app-line") };
      for (const trace of data) if (node.closest(".dark")) trace.line.color = trace.meta.dark;
      for (const shape of layout.shapes ?? []) shape.line = { color: colour("--app-edge"), width: 1, dash: "dot" };
      Object.assign(layout, { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { family: style.fontFamily, size: 12, color: colour("--app-ink") } });
      Object.assign(layout, { xaxis: { ...layout.xaxis, ...axis }, yaxis: { ...layout.yaxis, ...axis }, hoverlabel: { bgcolor: colour("--app-raised") } });
      react(node, data, layout, { displayModeBar: false, responsive: true });
    }
  },
};
