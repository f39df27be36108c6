"use strict";
// The switches of the chart. Data come from the element #data; nothing is fetched.
(() => {
  const { chart, folders } = JSON.parse(document.getElementById("data").textContent);
  const plot = document.getElementById("chart");
  const controls = document.getElementById("controls");
  const boxes = [...document.querySelectorAll("#legend input")];
  const spreads = { quartiles: ", bands hold the middle half of them", range: ", bands go from the smallest to the largest" };

  const root = document.documentElement;
  const find = (quantities, key) => quantities.find((one) => one.key === key);
  const state = () => ({
    y: find(chart.y, controls.elements.y.value),
    x: find(chart.x, controls.elements.x.value),
    spread: controls.elements.spread?.value,
    logx: controls.elements.logx.checked,
    logy: controls.elements.logy.checked,
  });

  const shown = (now) =>
    boxes.filter((box) => box.checked).map((box) => chart.curves[box.value])
      .filter((curve) => curve.x[now.x.key] && curve.y[now.y.key]);

  function draw() {
    const now = state();
    const curves = shown(now);
    fedmlsChart.draw(plot, chart, curves, now, folders);
    tell(now);
  }

  function tell(now) {
    const marks = folders.length === 2 ? ` Filled markers: ${folders[0]}; open markers: ${folders[1]}.` : "";
    document.getElementById("caption").textContent =
      `${now.y.title} against ${now.x.title.toLowerCase()}.`
      + (chart.seeds > 1 ? ` Lines are medians over seeds${spreads[now.spread] ?? ""}.` : "")
      + ` ${now.y.about} ${now.x.about}${marks}`;
    for (const box of boxes) {
      const curve = chart.curves[box.value];
      box.closest(".chip").classList.toggle("absent", !curve.y[now.y.key]);
    }
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
