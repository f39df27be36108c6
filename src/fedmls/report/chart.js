"use strict";
// Draws the curves of a chart, for the report and for the live page.
const fedmlsChart = (() => {
  const bands = { quartiles: ["first", "third"], range: ["low", "high"] };
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Plotly reads a few HTML tags in labels: text from files must show as it is.
  const literal = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // A logarithmic axis has no place for 0 and below: such values are drawn at the smallest positive one.
  function lowest(curves, now) {
    const positive = curves.flatMap((curve) => Object.values(curve.y[now.y.key]).flat()).filter((v) => v > 0);
    return positive.reduce((a, b) => Math.min(a, b), Infinity);
  }

  // now: what is shown (x, y: quantities; spread, logx, logy).  folders: their names.  legend: whether Plotly shows one.
  function draw(plot, chart, curves, now, folders, legend = false) {
    const floor = now.logy ? lowest(curves, now) : -Infinity;
    const at = (v) => (v === null ? null : Math.max(v, floor));
    const traces = [
      ...(bands[now.spread] ? curves.map((curve) => band(curve, now, at)) : []),
      ...curves.map((curve) => line(curve, now, at, chart.seeds, folders)),
    ];
    const config = {
      responsive: true, displaylogo: false,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // named, so that none sends the chart anywhere
      toImageButtonOptions: { format: "svg", filename: `${now.y.key}-${now.x.key}` },
    };
    plot.fedmlsNow = now;
    const drawn = Plotly.react(plot, traces, layout(plot, now, legend), config);
    if (!plot.fedmlsTicks) {
      plot.fedmlsTicks = true;
      plot.on("plotly_relayout", () => label(plot));
    }
    drawn.then(() => label(plot));
    plot.dataset.drawn = curves.length;
  }

  function line(curve, now, at, seeds, folders) {
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
        + (seeds > 1 ? "<br>from %{customdata[2]:.4~g} to %{customdata[3]:.4~g}" : "") + "<extra></extra>",
    };
  }

  function band(curve, now, at) {
    const [from, to] = bands[now.spread].map((name) => curve.y[now.y.key][name]);
    const places = curve.x[now.x.key].map((_, i) => i).filter((i) => from[i] !== null);
    const back = [...places].reverse();
    const x = curve.x[now.x.key];
    return {
      x: [...places, ...back].map((i) => x[i]), y: [...places.map((i) => at(to[i])), ...back.map((i) => at(from[i]))],
      type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", hoverinfo: "skip", showlegend: false,
      fillcolor: translucent(css(`--c${curve.colour}`)),
    };
  }

  function translucent(colour) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},0.16)`;
  }

  // On paper the window's width means nothing.
  const size = () => (root.classList.contains("printing") ? { width: 670, height: 380 } : { autosize: true });

  function layout(plot, now, legend) {
    const narrow = plot.clientWidth < 560;
    const axis = { gridcolor: css("--grid"), linecolor: css("--soft"), zeroline: false, automargin: true, ticks: "outside",
      tickcolor: css("--rule") };
    const scale = (log) => ({ type: log ? "log" : "linear", tickformat: log ? "" : ",~r" });
    const beside = { x: 1.02, y: 1, xanchor: "left", yanchor: "top" };
    const below = { orientation: "h", x: 0, y: -0.22, xanchor: "left", yanchor: "top" };
    return {
      ...size(), margin: { l: narrow ? 48 : 68, r: 12, t: 28, b: 48 }, hovermode: "closest", hoverdistance: 30,
      showlegend: legend, legend: { ...(narrow ? below : beside), bgcolor: "rgba(0,0,0,0)" },
      paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"), font: { color: css("--ink"), size: narrow ? 12 : 13 },
      hoverlabel: { bgcolor: css("--faint"), bordercolor: css("--soft"), font: { color: css("--ink") }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
      uirevision: JSON.stringify([now.x.key, now.y.key, now.logx, now.logy]),
      xaxis: { ...axis, ...scale(now.logx), title: { text: literal(now.x.axis) } },
      yaxis: { ...axis, ...scale(now.logy), title: { text: literal(now.y.axis) } },
    };
  }

  // Labels of logarithmic axes, for what is shown of them: whole numbers, where Plotly would write single digits.
  function label(plot) {
    const now = plot.fedmlsNow, full = plot._fullLayout, changes = {};
    for (const [name, key] of [["xaxis", now.x.key], ["yaxis", now.y.key]]) {
      if (full[name].type !== "log") continue;
      const values = ticks(...full[name].range, name === "xaxis" ? plot.clientWidth / 90 : 8);
      if (String(values) === String(full[name].tickvals ?? "")) continue;
      Object.assign(changes, { [`${name}.tickvals`]: values, [`${name}.ticktext`]: written(values, key) });
    }
    if (Object.keys(changes).length) Plotly.relayout(plot, changes);
  }

  // Places for about so many labels between two powers of ten
  function ticks(from, to, most) {
    const [low, high] = [10 ** from, 10 ** to];
    const inside = (v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9);
    const powers = (step) => {
      const first = Math.ceil(from / step - 1e-9) * step;
      return Array.from({ length: Math.max(0, Math.floor((to - first) / step + 1e-9) + 1) }, (_, i) => Number(`1e${first + i * step}`));
    };
    const decades = to - from;
    if (decades > 2) return powers(Math.max(1, Math.ceil(decades / most)));
    if (decades > 0.6) {
      const places = [];
      for (let k = Math.floor(from); k <= Math.ceil(to); k++) places.push(...[1, 2, 5].map((m) => Number(`${m}e${k}`)));
      return places.filter(inside);
    }
    const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * unit >= rough) * unit;
    const start = Math.ceil(low / step);
    const places = Array.from({ length: Math.max(0, Math.floor(high / step) - start + 1) }, (_, i) => Number(((start + i) * step).toPrecision(12)));
    return places.filter(inside);
  }

  // All labels of an axis in one way: bytes in their units, others as whole numbers or, of very small or large ones, powers.
  function written(values, key) {
    if (key === "bytes") return values.map(bytes);
    const plain = values.every((v) => v >= 1e-3 && v < 1e6);
    return values.map((v) => (plain ? v.toLocaleString("en", { maximumSignificantDigits: 6 }) : power(v)));
  }

  function bytes(value) {
    const [unit, name] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => value >= size) ?? [1, "B"];
    return `${Number((value / unit).toPrecision(6)).toLocaleString("en")} ${name}`;
  }

  function power(value) {
    const [digits, exponent] = value.toExponential().split("e");
    const shown = Number(Number(digits).toPrecision(6));
    const ten = `10<sup>${exponent.replace("-", "−").replace("+", "")}</sup>`;
    return shown === 1 ? ten : `${shown}×${ten}`;
  }

  return { draw };
})();
