// ---- chains of updates ----

function chainResults() {
  const one = D.chains[Number($("chain-which").value)];
  if (!one) return;
  const what = $("chain-what").value;
  const colors = dark() ? DARK_COLORS : D.colors;
  const runs = one.rows.map(([run]) => run);
  const traces = one.lines[what].flatMap(([name, values, low, high], at) => {
    const [color, symbol] = [colors[at % colors.length], SYMBOLS[at % SYMBOLS.length]];
    const line = {
      x: runs, y: values, name: escaped(name), mode: "lines+markers", line: { color, width: 2, dash: DASHES[at % DASHES.length] }, marker: { color, symbol, size: 6 },
      hovertemplate: `%{x}: %{y:.4f}<extra>${escaped(name)}</extra>`,
    };
    const banded = runs.map((run, day) => [run, low[day], high[day]]).filter(([, bottom]) => known(bottom));
    if (!banded.length) return [line];
    const back = [...banded].reverse();
    return [{
      x: [...banded, ...back].map(([run]) => run), y: [...banded.map(([, , top]) => top), ...back.map(([, bottom]) => bottom)], name: "",
      fill: "toself", fillcolor: translucent(color), line: { width: 0 }, mode: "lines", showlegend: false, hoverinfo: "skip",
    }, line];
  });
  const format = layout("Run", what.replace(", ", ",\n"), { xaxis: { type: "category", categoryorder: "array", categoryarray: runs }, uirevision: what });
  chart("chain", traces, { ...format, showlegend: one.lines[what].length > 1 });
  tabulate($("chain-table"), one);
  const table = $("chain-layouts").querySelector("table");
  $("chain-layouts").hidden = !one.layouts;
  if (one.layouts) tabulate(table, one.layouts, 2);
  if (one.layouts) table.caption.textContent = one.layouts.caption;
}

// a table whose first columns hold text, and others numbers
function tabulate(table, { header, rows }, texts = 1) {
  const kind = (at) => (at < texts ? "" : ' class="number"');
  const row = ([name, ...cells]) => `<tr><th scope="row">${escaped(name)}</th>${cells.map((text, at) => `<td${kind(at + 1)}>${escaped(text)}</td>`).join("")}</tr>`;
  table.tHead.innerHTML = `<tr>${header.map((text, at) => `<th scope="col"${kind(at)}>${escaped(text)}</th>`).join("")}</tr>`;
  table.tBodies[0].innerHTML = rows.map(row).join("");
  labelled(table);
}

// fills the choices of the section, which is hidden where no run goes on from another
function chainChoices() {
  $("chain-results").hidden = !D.chains.length;
  if (!D.chains.length) return;
  options("chain-which", D.chains.map(({ rows }, at) => [at, `${rows[0][0]} to ${rows.at(-1)[0]}`]), 0);
  $("chain-which").closest("label").hidden = D.chains.length < 2;
  const labels = [...new Set(D.chains.flatMap(({ lines }) => Object.keys(lines)))];
  options("chain-what", labels.map((label) => [label, label]), labels[0]);
}
