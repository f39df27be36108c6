"use strict";
// The chart and its switches. Data come from the element #data; nothing is fetched.
(() => {
  const { chart, folders } = JSON.parse(document.getElementById("data").textContent);
  const plot = document.getElementById("chart");
  const controls = document.getElementById("controls");
  const boxes = [...document.querySelectorAll("#legend input")];
  const bands = { quartiles: ["first", "third"], range: ["low", "high"] };
  const spreads = { quartiles: ", bands hold the middle half of them", range: ", bands go from the smallest to the largest" };

  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const find = (quantities, key) => quantities.find((one) => one.key === key);
  const state = () => ({
    y: find(chart.y, controls.elements.y.value),
    x: find(chart.x, controls.elements.x.value),
    spread: controls.elements.spread?.value,
    logx: controls.elements.logx.checked,
    logy: controls.elements.logy.checked,
  });

  // Plotly reads a few HTML tags in labels: text from files must show as it is.
  const literal = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const shown = (now) =>
    boxes.filter((box) => box.checked).map((box) => chart.curves[box.value])
      .filter((curve) => curve.x[now.x.key] && curve.y[now.y.key]);

  // A logarithmic axis has no place for 0 and below: such values are drawn at the smallest positive one.
  function lowest(curves, now) {
    const positive = curves.flatMap((curve) => Object.values(curve.y[now.y.key]).flat()).filter((v) => v > 0);
    return positive.reduce((a, b) => Math.min(a, b), Infinity);
  }

  function draw() {
    const now = state();
    const curves = shown(now);
    const floor = now.logy ? lowest(curves, now) : -Infinity;
    const at = (v) => (v === null ? null : Math.max(v, floor));
    const traces = [
      ...(bands[now.spread] ? curves.map((curve) => band(curve, now, at)) : []),
      ...curves.map((curve) => line(curve, now, at)),
    ];
    const config = {
      responsive: true, displaylogo: false,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // named, so that none sends the chart anywhere
      toImageButtonOptions: { format: "svg", filename: `${now.y.key}-${now.x.key}` },
    };
    Plotly.react(plot, traces, layout(now, decades(curves, now)), config);
    tell(now, curves);
  }

  function line(curve, now, at) {
    const { low, median, high } = curve.y[now.y.key];
    const x = curve.x[now.x.key];
    const colour = css(`--c${curve.colour}`);
    const where = folders.length > 1 ? `<br>${literal(folders[curve.folder])}` : "";
    return {
      x, y: median.map(at), customdata: x.map((_, i) => [curve.x.round[i], median[i], low[i], high[i]]),
      name: literal(curve.name), mode: "lines+markers", type: "scatter",
      line: { color: colour, width: 2, dash: curve.dash || "solid" },
      marker: {
        color: curve.open ? css("--paper") : colour, line: { color: colour, width: curve.open ? 1.6 : 0 },
        symbol: curve.symbol, size: 9, maxdisplayed: 11,
      },
      hovertemplate: `<b>${literal(curve.name)}</b>${where}<br>round %{customdata[0]:,}`
        + (now.x.key === "round" ? "" : `<br>${literal(now.x.axis)} %{x:${now.x.key === "seconds" ? ".3~g" : ",.0f"}}`)
        + `<br>${literal(now.y.title.toLowerCase())} %{customdata[1]:.4~g}`
        + (chart.seeds > 1 ? "<br>from %{customdata[2]:.4~g} to %{customdata[3]:.4~g}" : "") + "<extra></extra>",
    };
  }

  function band(curve, now, at) {
    const [from, to] = bands[now.spread].map((name) => curve.y[now.y.key][name]);
    const places = curve.x[now.x.key].map((_, i) => i).filter((i) => from[i] !== null);
    const back = [...places].reverse();
    const x = curve.x[now.x.key];
    return {
      x: [...places, ...back].map((i) => x[i]), y: [...places.map((i) => at(to[i])), ...back.map((i) => at(from[i]))],
      type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", hoverinfo: "skip",
      fillcolor: translucent(css(`--c${curve.colour}`)),
    };
  }

  function translucent(colour) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},0.16)`;
  }

  // How many powers of ten each axis goes over
  function decades(curves, now) {
    const over = (values) => {
      const positive = values.filter((v) => v > 0);
      return Math.log10(positive.reduce((a, b) => Math.max(a, b), 0) / positive.reduce((a, b) => Math.min(a, b), Infinity));
    };
    return { x: over(curves.flatMap((c) => c.x[now.x.key])), y: over(curves.flatMap((c) => c.y[now.y.key].median)) };
  }

  // On paper the window's width means nothing.
  const size = () => (root.classList.contains("printing") ? { width: 670, height: 380 } : { autosize: true });

  function layout(now, over) {
    const narrow = plot.clientWidth < 560;
    const axis = { gridcolor: css("--grid"), linecolor: css("--soft"), zeroline: false, automargin: true, ticks: "outside",
      tickcolor: css("--rule") };
    const scale = (log, powers) => (log ? { type: "log", ...(powers > 2 ? { dtick: 1 } : powers > 0.7 ? { dtick: "D2" } : {}) } : { type: "linear" });
    return {
      ...size(), margin: { l: narrow ? 48 : 68, r: 12, t: 28, b: 48 }, showlegend: false, hovermode: "closest", hoverdistance: 30,
      paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"), font: { color: css("--ink"), size: narrow ? 12 : 13 },
      hoverlabel: { bgcolor: css("--faint"), bordercolor: css("--soft"), font: { color: css("--ink") }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      uirevision: JSON.stringify([now.x.key, now.y.key, now.logx, now.logy]),
      xaxis: { ...axis, ...scale(now.logx, over.x), title: { text: literal(now.x.axis) }, exponentformat: "SI" },
      yaxis: { ...axis, ...scale(now.logy, over.y), title: { text: literal(now.y.axis) }, exponentformat: "power" },
    };
  }

  function tell(now, curves) {
    const marks = folders.length === 2 ? ` Filled markers: ${folders[0]}; open markers: ${folders[1]}.` : "";
    document.getElementById("caption").textContent =
      `${now.y.title} against ${now.x.title.toLowerCase()}.`
      + (chart.seeds > 1 ? ` Lines are medians over seeds${spreads[now.spread] ?? ""}.` : "")
      + ` ${now.y.about} ${now.x.about}${marks}`;
    for (const box of boxes) {
      const curve = chart.curves[box.value];
      box.closest(".chip").classList.toggle("absent", !curve.y[now.y.key]);
    }
    plot.dataset.drawn = curves.length;
  }

  // What a switch allows and what it starts with
  function fit() {
    const { y } = state();
    controls.elements.logy.disabled = !y.can_log;
    controls.elements.logy.checked = y.log;
  }

  function pick(which) {
    for (const box of boxes) {
      box.checked = !box.disabled && (which === "all" || (which === "best" && chart.curves[box.value].best));
    }
    draw();
  }

  function targets() {
    const form = document.getElementById("target-controls");
    const chosen = (name) => form.elements[name]?.value;
    for (const table of document.querySelectorAll(".target")) {
      table.hidden = table.dataset.cost !== chosen("cost") || ![undefined, table.dataset.gap].includes(chosen("gap"));
    }
  }

  async function copy(button) {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch { // not allowed here: select it, so that a key does
      getSelection().selectAllChildren(text);
    }
  }

  function printed(on) {
    root.classList.toggle("printing", on);
    if (controls) draw();
  }

  if (controls) {
    fit();
    draw();
    controls.addEventListener("change", (event) => { if (event.target.name === "y") fit(); draw(); });
    document.getElementById("legend").addEventListener("change", draw);
    for (const button of document.querySelectorAll("[data-pick]")) button.addEventListener("click", () => pick(button.dataset.pick));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }
  if (document.getElementById("target-controls")) {
    targets();
    document.getElementById("target-controls").addEventListener("change", targets);
  }
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
  addEventListener("beforeprint", () => printed(true));
  addEventListener("afterprint", () => printed(false));
})();
