"use strict";
// The page's data is in `D` (see page.py); groups are runs that differ in their seed only, and are the rows.
let D;
const $ = (id) => document.getElementById(id);
const ALL = "all";
const FIRST = 8; // rows that are drawn at first: as many as there are colours
const MANY = 10; // values of a setting that parallel coordinates space evenly at most
const FEW = 10; // documents, of which a click rate tells little
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x"];
// the colours of the figures, lighter, in the same order
const DARK_COLORS = ["#4ba3e3", "#f4874b", "#2dbe91", "#e29bc6", "#f2b632", "#9bd6f7", "#ffffff", "#c9a94a"];
const state = {
  comparison: 0, // place in D.comparisons, or ALL
  baseline: null,
  filters: {},
  search: "",
  sort: { key: null, up: true },
  columns: [],
  slots: new Map(), // what is drawn: group -> place among the colours
  open: new Set(), // groups whose runs are listed
};

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent.trim()), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// ---- text ----

const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const inOrder = (a, b) => (a !== "" && b !== "" && !Number.isNaN(a - b) ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
const known = (value) => value !== null && value !== undefined;

function shown(value, digits = 4) {
  if (!known(value)) return "–";
  return Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : value.toFixed(digits);
}

function seconds(value) {
  if (!known(value)) return "–";
  return value >= 100 ? shown(value, 0) : value.toPrecision(3);
}

const pText = (p) => (p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`);
const shortKey = (key) => {
  const last = (name) => name.split("@").pop().split(".").pop();
  return D.keys.filter((other) => last(other) === last(key)).length > 1 ? key : last(key);
};
const metric = (name) => D.metrics[name] ?? { name, short: name, axis: name, direction: 0 };
// relative, whatever the folder is called: a colon would make a scheme of its first part
const link = (run) => `${run.folder.split("/").map(encodeURIComponent).join("/")}/`;
const runName = (run) => `${run.group.name}${known(run.seed) ? `, seed ${run.seed}` : ""} (${run.folder})`;

// ---- what is shown ----

const comparisons = () => (state.comparison === ALL ? D.comparisons : [D.comparisons[state.comparison]]);
const mine = () => D.groups.filter((group) => comparisons().includes(group.comparison));
const keys = () => {
  const groups = mine();
  return D.keys.filter((key) => new Set(groups.map((group) => String(group.overrides[key]))).size > 1);
};
const text = (value) => (known(value) ? String(value) : "–");

function facts(group) {
  const overrides = Object.fromEntries(D.keys.map((key) => [key, text(group.overrides[key])]));
  return { model: group.model, tower: group.tower || "–", ...overrides };
}

function visible() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return sorted(mine().filter((group) => {
    const own = facts(group);
    if (Object.entries(state.filters).some(([key, value]) => value !== "" && own[key] !== value)) return false;
    const told = [group.name, own.tower, group.comparison.name, ...D.keys.map((key) => `${key}=${own[key]}`)].join(" ").toLowerCase();
    return words.every((word) => told.includes(word));
  }));
}

function sortValue(group, key) {
  if (key === "seeds") return group.runs.length;
  if (key === "seconds" || key === "parameters") return group[key];
  if (key === "test-set") return group.comparison.name;
  if (key === "name") return group.name;
  if (group.values[key]) return group.values[key][0];
  if (key in D.metrics) return null;
  const value = key === "tower" ? group.tower : group.overrides[key];
  return known(value) ? value : null;
}

function sorted(groups) {
  const { key, up } = state.sort;
  const order = (a, b) => {
    const [x, y] = [sortValue(a, key), sortValue(b, key)];
    if (!known(x) || !known(y)) return known(y) - known(x);
    return up ? inOrder(x, y) : -inOrder(x, y);
  };
  return [...groups].sort(order);
}

const bestFirst = (name) => ({ key: name, up: metric(name).direction <= 0 });
const drawn = () => visible().filter((group) => state.slots.has(group));

function draw(groups) {
  state.slots = new Map(groups.map((group, slot) => [group, slot]));
}

function toggle(group) {
  if (state.slots.delete(group)) return;
  const taken = new Set(state.slots.values());
  let slot = 0;
  while (taken.has(slot)) slot += 1;
  state.slots.set(group, slot);
}

// ---- leaderboard ----

function places(groups, name) {
  const { direction } = metric(name);
  const found = new Map();
  if (!direction) return found;
  for (const comparison of comparisons()) {
    const own = groups.filter((group) => group.comparison === comparison && known(group.values[name]?.[0]));
    const rounded = (group) => Number(group.values[name][0].toFixed(4)); // as it is shown
    const values = [...new Set(own.map(rounded))].sort((a, b) => (b - a) * direction);
    if (values.length < 2) continue;
    for (const group of own) {
      const place = values.indexOf(rounded(group));
      if (place < 2) found.set(group, place ? "second" : "best");
    }
  }
  return found;
}

function pValue(group, name) {
  const { baselines, tests, groups } = group.comparison;
  const baseline = state.baseline?.comparison === group.comparison ? state.baseline : null;
  if (!baseline || !tests[name]) return null;
  const p = tests[name].p[baselines.indexOf(baseline.id)]?.[groups.indexOf(group.id)];
  return known(p) ? { p, unit: tests[name].unit } : null;
}

function secondsCell({ seconds: training, compiling }) {
  return `<td class="number">${seconds(training)}${known(compiling) ? `<small>+ ${seconds(compiling)} compiling</small>` : ""}</td>`;
}

function metricCell(group, name, place) {
  const [mean, sd, low, high, over] = group.values[name] ?? [null];
  const tested = pValue(group, name);
  const stars = !tested ? "" : tested.p < 0.01 ? "**" : tested.p < D.significant ? "*" : "";
  const told = [];
  if (known(low)) told.push(`95% interval ${shown(low)} to ${shown(high)} over ${over}`);
  if (tested) told.push(`${pText(tested.p)} against ${state.baseline.name}, over ${tested.unit}`);
  const interval = known(low) ? `<small>${shown(low)} to ${shown(high)}${over === "queries" ? " q" : ""}</small>` : "";
  const mark = stars ? `<span class="mark">${stars}</span>` : "";
  const deviation = known(sd) ? ` ± ${shown(sd)}` : "";
  return `<td class="number ${place ?? ""}" title="${escaped(told.join("; "))}"><span>${shown(mean)}</span>${mark}${deviation}${interval}</td>`;
}

function columnList() {
  const settings = keys().map((key) => ({ key, title: shortKey(key), cell: (group) => `<td>${escaped(text(group.overrides[key]))}</td>` }));
  const metrics = state.columns.map((name) => ({ key: name, title: metric(name).short, number: true, metric: name }));
  const towers = new Set(mine().map((group) => group.tower)).size > 1;
  const own = [
    ...(towers ? [{ key: "tower", title: "Tower", cell: (group) => `<td>${escaped(group.tower || "–")}</td>` }] : []),
    ...settings,
  ];
  return [
    { key: "name", title: "Model", cell: nameCell, name: true },
    ...(state.comparison === ALL ? [{ key: "test-set", title: "Test set", cell: (group) => `<td>${escaped(group.comparison.name)}</td>` }] : []),
    ...(narrow() ? [...metrics, ...own] : [...own, ...metrics]),
    { key: "seconds", title: "Time (s)", number: true, cell: secondsCell },
    { key: "parameters", title: "Parameters", number: true, cell: (group) => `<td class="number">${shown(group.parameters, 0)}</td>` },
    { key: "seeds", title: "Runs", number: true, cell: runsCell },
  ];
}

function nameCell(group) {
  const settings = narrow() ? `<small>${escaped(keys().map((key) => group.overrides[key]).filter(known).join(" · "))}</small>` : "";
  const color = state.slots.has(group) ? look(group).color : "transparent";
  const baseline = group === state.baseline ? ' <span class="tag">baseline</span>' : "";
  const chosen = group.chosen ? ' <span class="tag">chosen</span>' : "";
  return `<td class="name"><label><input type="checkbox" data-draw="${group.id}" aria-label="Draw ${escaped(group.name)}"
    ${state.slots.has(group) ? "checked" : ""}><span class="swatch" style="background:${color}"></span>
    <span>${escaped(group.rest)}${settings}</span></label>${chosen}${baseline}</td>`;
}

function runsCell(group) {
  const open = state.open.has(group);
  return `<td class="number expand"><button type="button" data-open="${group.id}" aria-expanded="${open}"
    aria-label="Runs of ${escaped(group.name)}">${group.runs.length} ${open ? "▾" : "▸"}</button></td>`;
}

function runRows(group, columns) {
  return group.runs.map((run) => `<tr class="runs">${columns.map((column) => {
    if (column.name) return `<td class="name">↳ <a href="${escaped(link(run))}">${escaped(run.folder)}</a>${run.chosen ? ' <span class="tag">chosen</span>' : ""}</td>`;
    if (column.metric) return `<td class="number">${shown(run.values[column.metric])}</td>`;
    if (column.key === "seconds") return secondsCell(run);
    if (column.key === "seeds") return `<td class="number">${known(run.seed) ? `seed ${run.seed}` : ""}</td>`;
    return "<td></td>";
  }).join("")}</tr>`).join("");
}

function leaderboard() {
  const groups = visible();
  const columns = columnList();
  const best = Object.fromEntries(state.columns.map((name) => [name, places(groups, name)]));
  $("leaderboard").tHead.innerHTML = `<tr>${columns.map(({ key, title, number, name }) => {
    const sort = state.sort.key === key ? ` aria-sort="${state.sort.up ? "ascending" : "descending"}"` : "";
    const told = metric(key).axis;
    return `<th scope="col" class="${number ? "number" : ""} ${name ? "name" : ""}"${sort}><button type="button"
      data-sort="${escaped(key)}" title="${escaped(key in D.metrics ? told : key)}">${escaped(title)}</button></th>`;
  }).join("")}</tr>`;
  $("leaderboard").tBodies[0].innerHTML = groups.map((group) => {
    const cells = columns.map((column) => (column.metric
      ? metricCell(group, column.metric, best[column.metric].get(group))
      : column.cell(group)));
    return `<tr>${cells.join("")}</tr>${state.open.has(group) ? runRows(group, columns) : ""}`;
  }).join("");
  $("count").textContent = `${groups.length} of ${mine().length} rows, ${drawn().length} drawn`;
  const chosen = comparisons();
  $("described").textContent = chosen.map((one) => `${one.name}: ${one.about}`).join("; ");
  const warnings = [...new Set(chosen.flatMap((one) => one.warnings))];
  if (chosen.length > 1) {
    warnings.unshift(`These rows were tested on ${chosen.length} different test sets: numbers of different test sets cannot be ranked. Best and second are marked within each`);
  }
  $("warnings").hidden = !warnings.length;
  $("warnings").textContent = `${warnings.join(". ")}.`;
  const units = [...new Set(chosen.flatMap((one) => Object.values(one.tests).map((test) => test.unit)))];
  const stars = !state.baseline ? " Choose one test set to test against a baseline."
    : units.length ? ` * p < ${D.significant}, ** p < 0.01 against ${state.baseline.name}: paired t-test over ${units.join(" or ")}, corrected by Holm's method for all rows.`
    : " No tests: they need runs with keep_values=true, or several seeds in common.";
  const choices = [...new Set(chosen.map((one) => one.choice).filter(Boolean))].map((choice) => `${choice}. `).join("");
  $("legend").textContent = `${choices}Mean ± standard deviation over seeds; below it the 95% interval over seeds (Student's t) or, marked q, of a single run over queries (bootstrap). Best in bold, second underlined.${stars}`;
}

// ---- charts ----

const narrow = () => window.innerWidth < 700;
const dark = () => document.documentElement.dataset.theme === "dark";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function look(group) {
  const slot = state.slots.get(group);
  const colors = dark() ? DARK_COLORS : D.colors;
  return {
    color: colors[slot % colors.length],
    dash: DASHES[(slot + Math.floor(slot / colors.length)) % DASHES.length],
    symbol: SYMBOLS[slot % SYMBOLS.length],
  };
}

// short names for legends: what tells rows apart, without the keys
const label = (group) => [group.rest, ...keys().map((key) => group.overrides[key]).filter(known)].join(" · ");
const translucent = (color) => `rgba(${[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).join()},0.16)`;

const [LINE, GAP, LETTER, MARK] = [16, 13, 6.3, 50]; // of a legend: height of a line, space between rows, width of a letter and of a mark
const TOOLBAR = 32; // its height, above the axes

function layout(x, y, more = {}) {
  const axis = (title, own = {}) => ({
    title: { text: escaped(title).replace("\n", "<br>"), standoff: 8 }, gridcolor: css("--grid"), linecolor: css("--line"),
    zeroline: false, automargin: true, tickcolor: css("--line"), ticks: "outside", ticklen: 4, ...own,
  });
  return {
    margin: { l: 10, r: 12, t: TOOLBAR, b: 10 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--muted"), activecolor: css("--accent") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") }, namelength: -1 },
    legend: { orientation: "h", xref: "container", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", font: { size: 12 }, maxheight: 1 },
    xaxis: axis(x, more.xaxis), yaxis: axis(y.replace(/ (?=\([^)]* [^)]*\)$)/, "\n"), more.yaxis), showlegend: true, shapes: more.shapes ?? [],
    uirevision: more.uirevision ?? "stay",
  };
}

// room for the legend below the axes, which keep their height; long names are broken into lines
function fit(place, traces, format) {
  const room = place.clientWidth - 20;
  const most = Math.floor((room - MARK) / LETTER);
  let [above, row, left] = [0, 0, 0];
  for (const trace of traces) {
    trace.name = trace.name.split(" · ").reduce((name, part) => {
      const last = name.split("<br>").pop();
      return last.length + part.length + 3 > most ? `${name}<br>${part}` : `${name} · ${part}`;
    });
    if (trace.showlegend === false) continue;
    const parts = trace.name.split("<br>");
    const width = Math.max(...parts.map((part) => part.length)) * LETTER + MARK;
    if (width > left) {
      above += row;
      [row, left] = [0, room];
    }
    left -= width;
    row = Math.max(row, parts.length * LINE + GAP);
  }
  const legend = above + row;
  format.height = 320 + TOOLBAR + legend;
  format.margin.b = 60 + legend;
}

// fits the axis to most of the curves where a few lie far off, as the figures do, and says so in their names
function withoutOutliers(traces, format) {
  const curves = traces.filter((trace) => !trace.fill);
  const names = [...new Set(curves.map((trace) => trace.legendgroup))].filter(known);
  const ends = new Map(names.map((name) => {
    const values = curves.filter((trace) => trace.legendgroup === name).flatMap((trace) => trace.y).filter(known);
    return [name, [Math.min(...values), Math.max(...values)]];
  }));
  if (ends.size < 3) return;
  const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  const bounds = [...ends.values()];
  const middle = median(bounds.map(([low, high]) => (low + high) / 2));
  const reach = 4 * median(bounds.map(([low, high]) => high - low)) + 10 * median(bounds.map(([low, high]) => Math.abs((low + high) / 2 - middle)));
  const far = new Set(names.filter((name) => ends.get(name)[0] < middle - reach || ends.get(name)[1] > middle + reach));
  const near = names.filter((name) => !far.has(name)).map((name) => ends.get(name));
  if (!far.size || !near.length) return;
  const [low, high] = [Math.min(...near.map(([value]) => value)), Math.max(...near.map(([, value]) => value))];
  format.yaxis.range = [low - 0.06 * (high - low), high + 0.06 * (high - low)];
  for (const trace of traces) if (far.has(trace.legendgroup)) trace.name += " (beyond the axis)";
}

function chart(id, traces, format, why = "Nothing to draw: choose rows in the leaderboard.") {
  const place = $(id);
  if (!traces.length) {
    Plotly.purge(place);
    place.classList.add("empty");
    place.textContent = why;
    return;
  }
  if (place.classList.contains("empty")) {
    place.classList.remove("empty");
    place.textContent = "";
  }
  if (format.showlegend) {
    if (!format.yaxis.range) withoutOutliers(traces, format);
    fit(place, traces, format);
  }
  Plotly.react(place, traces, format, {
    responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg", filename: `clickexp-${id}` },
  });
}

function curve(group, x, [mean, low, high]) {
  const { color, dash, symbol } = look(group);
  const own = { legendgroup: String(group.id), name: escaped(label(group)), x };
  const line = {
    ...own, y: mean, mode: "lines+markers", line: { color, dash, width: 2 }, marker: { color, symbol, size: 6 },
    hovertemplate: `rank %{x}: %{y:.4f}<extra>${escaped(group.name)}</extra>`,
  };
  const banded = x.filter((_, at) => known(low?.[at]) && known(high?.[at]));
  if (!banded.length) return [line];
  const at = banded.map((value) => x.indexOf(value));
  const band = {
    ...own, x: [...banded, ...[...banded].reverse()], y: [...at.map((i) => high[i]), ...at.reverse().map((i) => low[i])],
    fill: "toself", fillcolor: translucent(color), line: { width: 0 }, mode: "lines", showlegend: false, hoverinfo: "skip",
  };
  return [band, line];
}

function perRank(id, name, difference) {
  const base = difference ? state.baseline?.perRank[name] : null;
  const traces = drawn().filter((group) => group.perRank[name]?.length).flatMap((group) => {
    const vectors = group.perRank[name];
    const ranks = vectors[0].map((_, at) => at + 1);
    const minus = (value, at) => (known(value) && known(base[0][at]) ? value - base[0][at] : null);
    return curve(group, ranks, base ? [vectors[0].map(minus)] : vectors);
  });
  const title = base ? `Difference in ${metric(name).axis.replace(/^[A-Z](?=[a-z ])/, (sign) => sign.toLowerCase())}` : metric(name).axis;
  const yaxis = id === "examination" ? { range: [0, 1.03] } : {};
  chart(id, traces, layout("Rank", title, { xaxis: { dtick: traces.some((trace) => trace.x.length > 50) ? undefined : 1 }, yaxis, uirevision: `${name}${Boolean(base)}` }));
}

function learning() {
  const [name, over] = [$("learning-metric").value, $("learning-over").value];
  const traces = drawn().flatMap((group) => group.runs.filter((run) => run.curves[name] && run.curves[over]?.length).map((run, at) => {
    const { color, dash } = look(group);
    return {
      x: run.curves[over], y: run.curves[name], mode: run.curves[name].length > 1 ? "lines" : "markers", line: { color, dash, width: 1.6 }, marker: { color },
      name: escaped(label(group)), legendgroup: String(group.id), showlegend: at === 0, opacity: group.runs.length > 3 ? 0.6 : 0.9,
      hovertemplate: `%{x}: %{y:.4f}<extra>${escaped(group.name)}, seed ${run.seed}</extra>`,
    };
  }));
  const title = { epoch: "Epoch", sessions: "Sessions seen", seconds: metric("seconds").axis }[over];
  chart("learning", traces, layout(title, metric(name).axis, { uirevision: name + over }));
}

function cost() {
  const [name, over] = [$("cost-metric").value, $("cost-over").value];
  const points = visible().filter((group) => known(group[over]) && known(group.values[name]?.[0]));
  const sd = (group) => group.values[name][1] ?? 0;
  const told = (group) => `${escaped(group.name)}<br>${escaped(metric(name).short)} ${shown(group.values[name][0])}<br>${over === "seconds" ? `${seconds(group[over])} s, and ${seconds(group.compiling)} s compiling` : `${shown(group[over], 0)} parameters`}`;
  const scatter = (groups, own) => ({
    x: groups.map((group) => group[over]), y: groups.map((group) => group.values[name][0]), mode: "markers",
    text: groups.map(told), hoverinfo: "text", ...own,
    error_y: { array: groups.map(sd), thickness: 1, width: 3, color: own.marker.color, visible: groups.some(sd) },
  });
  const others = points.filter((group) => !state.slots.has(group));
  const traces = others.length ? [scatter(others, { name: "others", marker: { color: "#8b949e", size: 6, opacity: 0.6 } })] : [];
  for (const group of points.filter((one) => state.slots.has(one))) {
    const { color, symbol } = look(group);
    traces.push(scatter([group], { name: escaped(label(group)), legendgroup: String(group.id), marker: { color, symbol, size: 11 } }));
  }
  const values = points.map((group) => group[over]);
  const wide = Math.max(...values) > 10 * Math.min(...values) && Math.min(...values) > 0;
  chart("cost", traces, layout(metric(over).axis, metric(name).axis, {
    xaxis: wide ? { type: "log", dtick: 1, minor: { ticks: "outside", ticklen: 2 } } : {}, uirevision: name + over,
  }), "No row has both numbers.");
}

function reliability() {
  const chosen = $("reliability-rank").value;
  let end = 0;
  const traces = drawn().filter((group) => group.reliability).flatMap((group) => {
    const { predicted, observed, documents } = group.reliability;
    const points = documents.map((counts, bin) => {
      const ranks = chosen === ALL ? counts.map((_, at) => at) : [Number(chosen)];
      const count = ranks.reduce((sum, at) => sum + (counts[at] ?? 0), 0);
      const mean = (curves) => ranks.reduce((sum, at) => sum + (curves[bin][at] ?? 0) * (counts[at] ?? 0), 0) / count;
      return { count, x: mean(predicted), y: mean(observed) };
    }).filter(({ count }) => count >= FEW);
    if (!points.length) return [];
    end = Math.max(end, ...points.map(({ x, y }) => Math.max(x, y)));
    const { color, dash, symbol } = look(group);
    return [{
      x: points.map(({ x }) => x), y: points.map(({ y }) => y), customdata: points.map(({ count }) => count),
      mode: "lines+markers", line: { color, dash, width: 1.6 }, marker: { color, symbol, size: 6 },
      name: escaped(label(group)), legendgroup: String(group.id),
      hovertemplate: `predicted %{x:.3f}, observed %{y:.3f}, %{customdata:,} documents<extra>${escaped(group.name)}</extra>`,
    }];
  });
  const diagonal = { type: "line", x0: 0, y0: 0, x1: end, y1: end, line: { color: css("--muted"), width: 1, dash: "dot" }, layer: "below" };
  chart("reliability", traces, layout("Predicted P(click)", "Observed click rate", { shapes: [diagonal], uirevision: chosen }),
    "None of the rows drawn has a reliability curve (metric=calibration).");
}

function parallel() {
  const name = $("parallel-metric").value;
  const groups = visible().filter((group) => known(group.values[name]?.[0]));
  const several = new Set(groups.map((group) => group.model)).size > 1;
  const settings = [...(several ? ["model"] : []), ...keys().filter((key) => new Set(groups.map((group) => facts(group)[key])).size > 1)];
  const parameters = new Set(groups.map((group) => group.parameters)).size > 1 && groups.every((group) => group.parameters > 0);
  $("parallel-about").hidden = !settings.length || groups.length < 2;
  if (!settings.length || groups.length < 2) {
    chart("parallel", [], {}, "No two of the rows differ in an override.");
    return;
  }
  const dimensions = settings.map((key) => {
    const values = groups.map((group) => (key === "model" ? group.model : group.overrides[key]));
    const label = escaped(key === "model" ? "model" : shortKey(key));
    if (values.every((value) => typeof value === "number") && new Set(values).size > MANY) return { label, values };
    const texts = [...new Set(values.map(text))].sort(inOrder);
    return {
      label, values: values.map((value) => texts.indexOf(text(value))), tickvals: texts.map((_, at) => at),
      ticktext: texts.map((one) => escaped(one.length > 18 ? `${one.slice(0, 17)}…` : one)), range: [-0.3, texts.length - 0.7],
    };
  });
  if (groups.every((group) => group.seconds > 0)) dimensions.push({ label: "time (s)", values: groups.map((group) => group.seconds) });
  if (parameters) {
    const logs = groups.map((group) => Math.log10(group.parameters));
    const [low, high] = [Math.min(...logs), Math.max(...logs)];
    const between = Array.from({ length: 12 }, (_, tick) => tick).filter((tick) => tick > low + 0.2 && tick < high - 0.2);
    const ticks = [low, ...between, high];
    dimensions.push({ label: "parameters", values: logs, tickvals: ticks, ticktext: ticks.map((tick) => shown(10 ** tick, 0)) });
  }
  const values = groups.map((group) => group.values[name][0]);
  dimensions.push({ label: escaped(metric(name).short), values, tickformat: ".4~g" });
  const low = metric(name).direction < 0;
  const trace = {
    type: "parcoords", dimensions, labelfont: { size: 13, color: css("--text") }, tickfont: { size: 11, color: css("--text") },
    rangefont: { size: 1, color: "rgba(0,0,0,0)" },
    line: { color: values, colorscale: [[0, css("--weak")], [1, css("--accent")]], reversescale: low, showscale: false },
    unselected: { line: { color: css("--line"), opacity: 0.3 } },
  };
  const format = { ...layout("", ""), height: 420, margin: { l: 70, r: 30, t: 40 + TOOLBAR, b: 30 }, showlegend: false };
  $("parallel").style.minWidth = `${Math.max(300, dimensions.length * 95)}px`;
  chart("parallel", [trace], format);
}

function against() {
  const name = $("against-metric").value;
  const table = $("against");
  const { baseline } = state;
  if (!baseline) {
    table.tHead.innerHTML = table.tBodies[0].innerHTML = "";
    $("against-about").textContent = "Choose one test set: runs on different ones cannot be compared in pairs.";
    return;
  }
  const own = baseline.values[name]?.[0];
  const rows = sorted(visible().filter((group) => group !== baseline)).map((group) => {
    const mean = group.values[name]?.[0];
    const difference = known(mean) && known(own) ? mean - own : null;
    const tested = pValue(group, name);
    const sure = tested && tested.p < D.significant;
    const verdict = !tested || !known(difference) ? "not tested" : !sure ? "not significant"
      : !metric(name).direction ? "different" : difference * metric(name).direction > 0 ? "better" : "worse";
    const sign = known(difference) && difference > 0 ? "+" : "";
    return `<tr><td>${escaped(group.name)}</td><td class="number">${shown(mean)}</td><td class="number">${sign}${shown(difference)}</td>
      <td class="number">${tested ? (tested.p < 0.001 ? "< 0.001" : tested.p.toFixed(3)) : "–"}</td><td>${verdict}</td></tr>`;
  });
  table.tHead.innerHTML = `<tr><th>Model</th><th class="number">${escaped(metric(name).short)}</th><th class="number">Difference</th><th class="number">p</th><th>Verdict</th></tr>`;
  table.tBodies[0].innerHTML = rows.join("");
  const unit = baseline.comparison.tests[name]?.unit;
  $("against-about").textContent = `Baseline: ${baseline.name}, ${shown(own)}. ${unit
    ? `Paired t-test over ${unit}${unit === "queries" ? " (jackknife pseudo-values of the metric)" : ""}, p corrected by Holm's method for ${baseline.comparison.groups.length - 1} comparisons.`
    : "There is nothing to test: runs kept no values of single queries (keep_values=true) and share fewer than two seeds."}`;
}

function diff() {
  const [a, b] = [D.runs[$("diff-a").value], D.runs[$("diff-b").value]];
  const rows = D.settings.map((key, at) => [key, a.settings[at], b.settings[at]]).filter(([, x, y]) => x !== y);
  const environment = [...new Set([...Object.keys(a.environment), ...Object.keys(b.environment)])]
    .map((key) => [`environment.${key}`, a.environment[key], b.environment[key]]).filter(([, x, y]) => x !== y);
  const cell = (value) => (known(value) ? escaped(value) : '<span class="muted">not set</span>');
  const head = (run) => `<th scope="col"><a href="${escaped(link(run))}">${escaped(run.folder)}</a></th>`;
  $("diff").tHead.innerHTML = `<tr><th scope="col">Key</th>${head(a)}${head(b)}</tr>`;
  $("diff").tBodies[0].innerHTML = [...rows, ...environment].map(([key, x, y]) => `<tr><td>${escaped(key)}</td><td>${cell(x)}</td><td>${cell(y)}</td></tr>`).join("")
    || '<tr><td colspan="3">The configurations are the same.</td></tr>';
}

const charts = {
  ranks: () => perRank("ranks", $("ranks-metric").value, $("ranks-difference").checked),
  examination: () => perRank("examination", "examination", false),
  learning, cost, reliability, parallel, against, diff,
};

const stale = new Set();
const inView = new Set();

function refresh(name) {
  stale.delete(name);
  charts[name]();
}

// charts out of view wait until they come into it
const watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  inView[isIntersecting ? "add" : "delete"](target.id);
  if (isIntersecting && stale.has(target.id)) refresh(target.id);
}), { rootMargin: "200px" });

function all() {
  leaderboard();
  for (const name of Object.keys(charts)) {
    if (inView.has(name)) refresh(name);
    else stale.add(name);
  }
}

// ---- controls ----

function options(id, values, chosen, empty) {
  const list = values.map(([value, title]) => `<option value="${escaped(value)}">${escaped(title)}</option>`);
  if (empty) list.unshift(`<option value="">${empty}</option>`);
  $(id).innerHTML = list.join("");
  if (known(chosen)) $(id).value = chosen;
  if ($(id).selectedIndex < 0) $(id).selectedIndex = 0;
}

function filterChoices() {
  const groups = mine();
  const values = (key) => [...new Set(groups.map((group) => facts(group)[key]))].sort(inOrder);
  const fill = (id, key) => {
    options(id, values(key).map((value) => [value, value]), state.filters[key] ?? "", "all");
    $(id).closest("label").hidden = values(key).length < 2;
  };
  $("filter-overrides").innerHTML = keys().map((key, at) => `<label>${escaped(shortKey(key))} <select id="filter-${at}" data-filter="${escaped(key)}"></select></label>`).join("");
  fill("filter-model", "model");
  fill("filter-tower", "tower");
  keys().forEach((key, at) => fill(`filter-${at}`, key));
}

function chooseComparison(value) {
  state.comparison = value === ALL ? ALL : Number(value);
  state.filters = {};
  state.search = $("search").value = "";
  const chosen = comparisons();
  const leading = [...new Set(chosen.flatMap((one) => one.leading))];
  const metrics = [...new Set(chosen.flatMap((one) => one.metrics))];
  state.columns = leading;
  state.sort = metric(leading[0]).direction ? bestFirst(leading[0]) : { key: null, up: true };
  state.baseline = state.comparison === ALL ? null : D.groups[chosen[0].baseline];
  state.open.clear();
  const named = (names) => names.map((name) => [name, metric(name).name]);
  const groups = mine();
  const runs = groups.flatMap((group) => group.runs);
  const perRank = [...new Set(groups.flatMap((group) => Object.keys(group.perRank)))].filter((name) => name !== "examination");
  const curves = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name.includes("/"));
  options("baseline", state.baseline ? chosen[0].baselines.map((id) => [id, D.groups[id].name]) : [], state.baseline?.id);
  $("baseline").closest("label").hidden = !state.baseline;
  options("ranks-metric", named(perRank), perRank.includes("cond_ppl") ? "cond_ppl" : perRank[0]);
  const learned = leading.map((name) => (name.startsWith("val/") ? name : `val/${name}`)).find((name) => curves.includes(name));
  options("learning-metric", named(curves), learned ?? curves[0]);
  const tested = metrics.find((name) => !name.startsWith("val/")) ?? leading[0];
  for (const id of ["cost-metric", "against-metric"]) options(id, named(metrics), tested);
  options("parallel-metric", named(metrics), leading[0]);
  const ranks = Math.max(0, ...groups.map((group) => group.reliability?.documents[0]?.length ?? 0));
  options("reliability-rank", [[ALL, "all"], ...Array.from({ length: ranks }, (_, at) => [at, at + 1])], ALL);
  options("diff-a", runs.map((run) => [run.id, runName(run)]), runs[0].id);
  options("diff-b", runs.map((run) => [run.id, runName(run)]), (runs.find((run) => run.group !== runs[0].group) ?? runs.at(-1)).id);
  $("column-choices").innerHTML = metrics.map((name) => `<label><input type="checkbox" data-column="${escaped(name)}"
    ${state.columns.includes(name) ? "checked" : ""}> ${escaped(metric(name).name)}</label>`).join("");
  filterChoices();
  draw(visible().slice(0, FIRST));
  all();
  for (const place of document.querySelectorAll(".scroll")) place.scrollTo(0, 0);
}

function later(action) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, 150);
  };
}

function listen() {
  $("test-set").onchange = (event) => chooseComparison(event.target.value);
  $("baseline").onchange = (event) => { state.baseline = D.groups[event.target.value]; leaderboard(); ["against", "ranks"].forEach(refresh); };
  $("choices").addEventListener("change", ({ target }) => {
    if (!target.dataset.filter) return;
    state.filters[target.dataset.filter] = target.value;
    all();
  });
  const search = later(all);
  $("search").oninput = (event) => { state.search = event.target.value; search(); };
  $("draw-first").onclick = () => { draw(visible().slice(0, FIRST)); all(); };
  $("draw-none").onclick = () => { draw([]); all(); };
  $("column-choices").onchange = ({ target }) => {
    const name = target.dataset.column;
    state.columns = target.checked ? [...state.columns, name] : state.columns.filter((other) => other !== name);
    leaderboard();
  };
  $("leaderboard").addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button?.dataset.sort) {
      const key = button.dataset.sort;
      state.sort = state.sort.key === key ? { key, up: !state.sort.up } : key in D.metrics ? bestFirst(key) : { key, up: true };
      leaderboard();
      document.querySelector(`button[data-sort="${CSS.escape(key)}"]`).focus();
    } else if (button?.dataset.open) {
      const group = D.groups[button.dataset.open];
      if (!state.open.delete(group)) state.open.add(group);
      leaderboard();
      document.querySelector(`button[data-open="${group.id}"]`).focus();
    }
  });
  $("leaderboard").addEventListener("change", ({ target }) => {
    if (!target.dataset.draw) return;
    toggle(D.groups[target.dataset.draw]);
    all();
    document.querySelector(`input[data-draw="${target.dataset.draw}"]`).focus();
  });
  for (const [id, name] of [["ranks-metric", "ranks"], ["ranks-difference", "ranks"], ["learning-metric", "learning"], ["learning-over", "learning"],
    ["cost-metric", "cost"], ["cost-over", "cost"], ["reliability-rank", "reliability"], ["parallel-metric", "parallel"],
    ["against-metric", "against"], ["diff-a", "diff"], ["diff-b", "diff"]]) $(id).onchange = charts[name];
  for (const name of Object.keys(charts)) watcher.observe($(name));
  window.addEventListener("beforeprint", () => [...stale].forEach(refresh));
  $("theme").onclick = () => { theme(dark() ? "light" : "dark"); all(); };
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.onchange = () => { theme(system.matches ? "dark" : "light"); all(); };
  window.addEventListener("resize", later(all));
  document.addEventListener("click", ({ target }) => { if (!target.closest("#columns")) $("columns").open = false; });
  document.addEventListener("keydown", ({ key }) => { if (key === "Escape") $("columns").open = false; });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
}

async function start() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const script = document.createElement("script");
  const [code, content] = await Promise.all([unpack("packed-plotly"), unpack("packed-data")]);
  script.textContent = code;
  document.head.append(script);
  D = JSON.parse(content);
  D.comparisons.forEach((one) => one.groups.forEach((id) => { D.groups[id].comparison = one; }));
  D.groups.forEach((group, id) => {
    Object.assign(group, { id, runs: group.runs.map((at) => Object.assign(D.runs[at], { id: at, group })) });
  });
  $("about").textContent = D.about;
  const sets = D.comparisons.map((one, at) => [at, `${one.name} (${one.groups.length})`]);
  options("test-set", sets.length > 1 ? [...sets, [ALL, `all ${sets.length} test sets`]] : sets, 0);
  if (D.skipped.length) {
    $("skipped").hidden = false;
    $("skipped").querySelector("summary").textContent = `${D.skipped.length} folders skipped`;
    $("skipped").querySelector("ul").innerHTML = D.skipped.map((one) => `<li>${escaped(one)}</li>`).join("");
  }
  $("choices").hidden = false;
  $("loading").remove();
  listen();
  chooseComparison(0);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  $("loading").textContent = `The page could not be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
