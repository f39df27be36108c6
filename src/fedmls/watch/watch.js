"use strict";
// Asks for what there is to see, every second, and shows it. All text is shown as text.
(() => {
  const EVERY = 1000; // milliseconds
  const MANY = 8; // curves; of more the best of each method
  const find = (id) => document.getElementById(id);
  const controls = find("controls"), plot = find("chart");
  let seen = null;

  function element(name, text = "", kind = "") {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }

  function show(now) {
    document.body.dataset.status = now.status;
    document.title = `${now.share === null ? "" : `${Math.floor(100 * now.share)}% `}${now.title}`;
    find("title").textContent = now.title;
    find("status").textContent = now.status;
    find("sentence").textContent = now.sentence;
    progress(now.share);
    find("notes").replaceChildren(...now.notes.map((note) => element("li", note)));
    find("tiles").replaceChildren(...now.tiles.map(tile));
    curves(now.chart);
    runs(now.runs);
    nodes(now.nodes);
    scores(now.scores);
  }

  function progress(share) {
    const bar = find("progress");
    bar.hidden = share === null;
    bar.setAttribute("aria-valuenow", Math.floor(100 * (share ?? 0)));
    bar.firstElementChild.style.width = `${100 * (share ?? 0)}%`;
  }

  function tile(one) {
    const made = element("div");
    made.append(element("dt", one.name), element("dd", one.value, "value"));
    if (one.note) {
      const note = element("dd", "", "note");
      note.append(element("small", one.note));
      made.append(note);
    }
    return made;
  }

  // The switches are made anew only if there is something else to switch.
  function switches(name, quantities) {
    const field = find(name), keys = quantities.map((one) => one.key).join();
    if (field.dataset.keys === keys) return;
    const chosen = controls.elements[name]?.value;
    field.dataset.keys = keys;
    field.replaceChildren(field.firstElementChild, ...quantities.map((one, i) => {
      const label = element("label"), box = element("input");
      Object.assign(box, { type: "radio", name, value: one.key, checked: chosen ? one.key === chosen : i === 0 });
      label.append(box, element("span", one.title));
      return label;
    }));
  }

  function curves(chart) {
    find("curves").hidden = chart === null;
    if (chart === null) return;
    switches("y", chart.y);
    switches("x", chart.x);
    const quantity = (list, name) => list.find((one) => one.key === controls.elements[name].value) ?? list[0];
    const now = { x: quantity(chart.x, "x"), y: quantity(chart.y, "y"), spread: "range", logx: controls.elements.logx.checked };
    now.logy = now.y.can_log && controls.elements.logy.checked;
    const drawn = chart.curves.filter((curve) => curve.x[now.x.key] && curve.y[now.y.key]);
    const few = drawn.length > MANY ? drawn.filter((curve) => curve.best) : drawn;
    fedmlsChart.draw(plot, chart, few, now, [""], true);
  }

  function head(section, titles) {
    const row = element("tr");
    row.append(...titles.map((title, i) => Object.assign(element("th", title, i ? "number" : ""), { scope: "col" })));
    find(section).querySelector("thead").replaceChildren(row);
  }

  function body(section, rows) {
    find(section).querySelector("tbody").replaceChildren(...rows);
  }

  function named(text) {
    return Object.assign(element("th", text), { scope: "row" });
  }

  function runs(table) {
    find("runs").hidden = table === null;
    if (table === null) return;
    head("runs", ["Run", ...table.columns]);
    body("runs", table.rows.map((one) => {
      const row = element("tr"), name = named(one.name), share = element("div", "", "share"), done = element("i");
      done.style.width = `${100 * one.share}%`;
      share.append(done);
      name.append(share);
      row.append(name, ...one.cells.map((text) => element("td", text, "number")));
      return row;
    }));
    find("runs-left").textContent = table.left ? `… and ${table.left} more.` : "";
  }

  function nodes(table) {
    find("nodes").hidden = table === null;
    if (table === null) return;
    find("most").textContent = table.most;
    body("nodes", table.rows.map((one) => {
      const row = element("tr"), cell = element("td"), bars = element("div", "", "answers");
      bars.append(...one.cells.map((answer, i) => {
        const bar = element("i", "", answer.kind);
        bar.style.height = `${answer.height}%`;
        bar.title = `${table.exchanges[i]}: ${answer.about}`;
        return bar;
      }));
      cell.append(bars);
      row.append(named(one.name), ...[one.last, one.median, String(one.failed)].map((text) => element("td", text, "number")), cell);
      return row;
    }));
    find("nodes-left").textContent = table.left ? `… and ${table.left} more nodes.` : "";
  }

  function scores(table) {
    find("scores").hidden = table === null;
    if (table === null) return;
    head("scores", ["Node", ...table.columns]);
    body("scores", table.rows.map((one) => {
      const row = element("tr");
      row.append(named(one.name), ...one.cells.map((text) => element("td", text, "number")));
      return row;
    }));
  }

  function fail(status, sentence) {
    document.body.dataset.status = "error";
    find("status").textContent = status;
    find("sentence").textContent = sentence;
  }

  async function ask() {
    try {
      const answer = await fetch("data.json");
      const text = await answer.text();
      const now = JSON.parse(text);
      if (now.error) fail("cannot be read", now.error);
      else if (text !== seen || document.body.dataset.status === "error") show(now);
      seen = text;
    } catch {
      fail("not followed", "The program that serves this page has ended; what is shown is the last it told.");
    }
    setTimeout(ask, EVERY);
  }

  const again = () => { if (seen) curves(JSON.parse(seen).chart ?? null); };
  controls.addEventListener("change", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  ask();
})();
