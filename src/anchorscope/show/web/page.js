"use strict";
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 560px)");
  const shown = new Map();

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Colours come from the style sheet, so that a chart follows the page from light to dark.
  function themed(layout) {
    const ink = css("--ink"), line = css("--line"), paper = css("--paper");
    const axis = { gridcolor: line, linecolor: line, tickcolor: line, automargin: true };
    return {
      ...layout,
      height: narrow.matches ? 330 : 420,
      hovermode: narrow.matches ? "closest" : layout.hovermode,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--sans"), size: narrow.matches ? 11 : 13, color: ink },
      hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink, size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: ink },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
      shapes: layout.shapes.map((s) => ({ ...s, line: { ...s.line, color: css("--quiet") } })),
    };
  }

  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  // A copy of the view's traces: hidden groups stay hidden.
  function traces({ spec, view, hidden }) {
    return structuredClone(spec.views[view].data).map((trace) => {
      trace.visible = !hidden.has(trace.legendgroup);
      return trace;
    });
  }

  function swatch(trace) {
    const mark = document.createElement("i");
    if (trace.meta.null) {
      const ink = css("--quiet");
      mark.style.height = "8px";
      mark.style.background = `repeating-linear-gradient(135deg, ${ink} 0 1px, transparent 1px 4px)`;
      return mark;
    }
    mark.style.borderTop = `2px ${trace.line.dash === "dash" ? "dashed" : "solid"} ${trace.line.color}`;
    return mark;
  }

  // The legend names each group once; pressing a name hides or shows its line and band.
  function name(chart, drawn) {
    const seen = new Set();
    const entries = drawn.filter((t) => t.meta && !seen.has(t.legendgroup) && seen.add(t.legendgroup));
    const rank = ({ meta }) => (meta.null ? 2 : meta.control ? 1 : 0);  // controls and nulls last
    entries.sort((a, b) => rank(a) - rank(b));
    chart.legend.replaceChildren(...entries.map((trace) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(swatch(trace), document.createTextNode(trace.meta.label));
      button.setAttribute("aria-pressed", String(trace.visible));
      button.addEventListener("click", () => {
        const group = trace.legendgroup;
        if (!chart.hidden.delete(group)) chart.hidden.add(group);
        draw(chart);
      });
      return button;
    }));
  }

  function draw(chart) {
    chart.buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === chart.view)));
    const drawn = traces(chart);
    name(chart, drawn);
    const { layout } = chart.spec.views[chart.view];
    Plotly.react(chart.target, drawn, themed(layout), config);
  }

  document.querySelectorAll(".chart").forEach((target) => {
    const spec = JSON.parse(document.getElementById(`${target.id}-data`).textContent);
    const buttons = [...target.parentElement.querySelectorAll(".switch button")];
    const legend = target.parentElement.querySelector(".legend");
    const chart = { target, spec, view: 0, buttons, legend, hidden: new Set() };
    shown.set(target.id, chart);
    buttons.forEach((b, i) => b.addEventListener("click", () => { chart.view = i; draw(chart); }));
    draw(chart);
  });

  const redraw = () => shown.forEach(draw);
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);
  window.matchMedia("print").addEventListener("change", redraw);
  // A link to a finding's meaning unfolds it.
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    target?.closest("details")?.setAttribute("open", "");
    target?.scrollIntoView();
  });
  // What is folded away on the screen is unfolded on paper.
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
  });
})();
