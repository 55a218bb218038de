// ---- charts ----

function curve(group, x, [mean, low, high], bars = false) {
  const { color, dash, symbol } = look(group);
  const own = { legendgroup: String(group.id), name: escaped(label(group)), x };
  if (bars) { // ends wider than the marks are seen however short the bars are
    const reach = (bound) => mean.map((value, at) => (known(bound?.[at]) ? Math.abs(value - bound[at]) : 0));
    const array = reach(high);
    return [{
      ...own, y: mean, mode: "lines+markers", line: { color, dash, width: 1.6 }, marker: { color, symbol, size: 4 },
      error_y: { type: "data", symmetric: false, array, arrayminus: reach(low), visible: array.some((value) => value > 0), color, thickness: 1.4, width: 5 },
      hovertemplate: `rank %{x}: %{y:.4f}<extra>${escaped(group.name)}</extra>`,
    }];
  }
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

// mean and its 95% interval; of two or three values the lowest and the highest
function spread(values) {
  const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  if (values.length < 2) return [mean, null, null];
  if (values.length <= 3) return [mean, Math.min(...values), Math.max(...values)];
  const sd = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
  const half = (D.quantiles[values.length - 2] ?? 1.96) * sd / Math.sqrt(values.length);
  return [mean, mean - half, mean + half];
}

// mean of the difference at each rank and its bounds, over runs of the same seed on the same test set
function differences(group, base, name) {
  const pairs = group.runs.flatMap((run) => base.runs.filter((other) => other.seed === run.seed && other.testSet === run.testSet)
    .map((other) => [run.perRank[name], other.perRank[name]])).filter(([own, other]) => own && other);
  const [means] = group.perRank[name];
  return means.map((mean, at) => {
    const values = pairs.map(([own, other]) => (known(own[at]) && known(other[at]) ? own[at] - other[at] : null)).filter(known);
    if (!values.length) return [known(mean) && known(base.perRank[name][0][at]) ? mean - base.perRank[name][0][at] : null, null, null];
    return spread(values);
  });
}

const ranksOf = (values) => values.map((_, at) => at + 1);
const dense = (traces) => ({ dtick: traces.some((trace) => trace.x.length > 50) ? undefined : 1 });

function perRank() {
  const name = $("ranks-metric").value;
  const base = $("ranks-difference").checked && state.baseline?.perRank[name] ? state.baseline : null;
  const groups = drawn().filter((group) => group.perRank[name]?.length);
  const others = groups.filter((group) => group !== base);
  const traces = (others.length ? groups : []).flatMap((group) => {
    const vectors = group.perRank[name];
    const parts = [0, 1, 2].map((part) => (base ? differences(group, base, name).map((values) => values[part]) : vectors[part]));
    return curve(group, ranksOf(vectors[0]), parts);
  });
  const title = base ? `Difference to ${alone(base)}\nin ${metric(name).axis.replace(/^[A-Z](?=[a-z ])/, (sign) => sign.toLowerCase())}` : metric(name).axis;
  chart("ranks", traces, layout("Rank", title, { xaxis: dense(traces), uirevision: `${name}${Boolean(base)}` }),
    groups.length ? "Only the baseline is drawn, whose difference to itself is 0." : undefined);
}

// examination of a layout, such as a device, or the mean over the test sessions
function examination() {
  const chosen = $("examination-layout").value;
  const curves = (group) => (chosen ? layoutsOf(group)[chosen] : group.perRank.examination);
  const having = drawn().filter((group) => curves(group)?.[0].length);
  const groups = chosen ? having : having.filter((group) => group.examines);
  const traces = groups.flatMap((group) => curve(group, ranksOf(curves(group)[0]), curves(group), true));
  const others = chosen ? drawn().filter((group) => !having.includes(group)) : having.filter((group) => !group.examines);
  const why = chosen ? "without this layout" : "since all ranks are examined";
  const note = chosen ? `Examination of a rank relative to ${[...new Set(groups.map((group) => group.comparison.reference))].join(" or ")}. Bars are 95% intervals.`
    : "Probability that the fitted user examines a rank, mean over the test sessions.";
  $("examination-note").textContent = others.length ? `${note} Not drawn, ${why}: ${others.map(label).join(", ")}.` : note;
  const title = chosen ? `Relative examination,\n${chosen}` : metric("examination").axis;
  chart("examination", traces, layout("Rank", title, { xaxis: dense(traces), yaxis: chosen ? { rangemode: "tozero" } : { range: [0, 1.03] }, uirevision: chosen }));
}

const layoutsOf = (group) => group.comparison.layouts[group.id] ?? {};

// mean and its bounds over runs as far as all go, and a thin line for each that goes on
function learned(group, runs, name, over) {
  if (!runs.length) return [];
  const shared = Math.min(...runs.map((run) => run.curves[name].length));
  const { color, dash } = look(group);
  const own = { name: escaped(label(group)), legendgroup: String(group.id) };
  const overRuns = (column) => Array.from({ length: shared }, (_, at) => spread(runs.map((run) => run.curves[column][at]).filter(known)));
  const x = overRuns(over).map(([mean]) => mean);
  const points = overRuns(name);
  const line = {
    ...own, x, y: points.map(([mean]) => mean), mode: shared > 1 ? "lines" : "markers", line: { color, dash, width: 2 }, marker: { color },
    customdata: points.map(([, low, high]) => (known(low) ? ` (${low.toFixed(4)}, ${high.toFixed(4)}) over ${runs.length} runs` : "")),
    hovertemplate: `%{x}: %{y:.4f}%{customdata}<extra>${escaped(group.name)}</extra>`,
  };
  const rest = runs.filter((run) => run.curves[name].length > shared).map((run) => ({
    ...own, x: run.curves[over].slice(shared - 1), y: run.curves[name].slice(shared - 1), mode: "lines", line: { color, dash, width: 1 }, opacity: 0.6, showlegend: false,
    hovertemplate: `%{x}: %{y:.4f}<extra>${escaped(group.name)}, seed ${run.seed}</extra>`,
  }));
  const banded = points.map((point, at) => [x[at], ...point]).filter(([, , low]) => known(low));
  if (!banded.length) return [line, ...rest];
  const band = {
    ...own, x: [...banded, ...[...banded].reverse()].map(([at]) => at),
    y: [...banded.map(([, , , high]) => high), ...banded.map(([, , low]) => low).reverse()],
    fill: "toself", fillcolor: translucent(color), line: { width: 0 }, mode: "lines", showlegend: false, hoverinfo: "skip",
  };
  return [band, line, ...rest];
}

function learning() {
  const [name, over] = [$("learning-metric").value, $("learning-over").value];
  const traces = drawn().flatMap((group) => learned(group, group.runs.filter((run) => run.curves[name]?.some(known) && run.curves[over]?.length), name, over));
  const title = { epoch: "Epoch", sessions: "Sessions seen", seconds: metric("seconds").axis }[over];
  const last = Math.max(0, ...traces.flatMap((trace) => trace.x));
  const xaxis = over === "epoch" ? { dtick: Math.max(1, Math.round(last / 8)) } : {};
  chart("learning", traces, layout(title, metric(name).axis, { xaxis, uirevision: name + over }));
}

function cost() {
  const [name, over] = [$("cost-metric").value, $("cost-over").value];
  const points = visible().filter((group) => known(group[over]) && known(group.values[name]?.[0]));
  const bar = (end) => (group) => Math.abs((group.values[name][end] ?? group.values[name][0]) - group.values[name][0]);
  const hover = (group) => `${escaped(group.name)}<br>${escaped(metric(name).short)} ${textsOf(group, name)[0]}<br>${over === "seconds" ? `${seconds(group[over])} s, and ${seconds(group.compiling)} s compiling` : `${shown(group[over])} parameters`}`;
  const ends = points.filter((group) => state.slots.has(group)).map((group) => [group.id, [group.values[name][0], group.values[name][0]]]);
  const { range: [low, high] = [-Infinity, Infinity] } = outliers(new Map(ends));
  const costs = (groups) => groups.map((group) => (group.values[name][0] < low || group.values[name][0] > high ? null : group[over])); // of those within the axis
  const scatter = (groups, own) => ({
    x: costs(groups), y: groups.map((group) => group.values[name][0]), mode: "markers",
    text: groups.map(hover), hoverinfo: "text", ...own,
    error_y: { array: groups.map(bar(3)), arrayminus: groups.map(bar(2)), thickness: 1, width: 3, color: own.marker.color, visible: groups.some(bar(3)) },
  });
  const others = points.filter((group) => !state.slots.has(group));
  const traces = others.length ? [scatter(others, { name: "others", marker: { color: "#8b949e", size: 6, opacity: 0.6 } })] : [];
  for (const group of points.filter((one) => state.slots.has(one))) {
    const { color, symbol } = look(group);
    traces.push(scatter([group], { name: escaped(label(group)), legendgroup: String(group.id), marker: { color, symbol, size: 11 }, cliponaxis: false }));
  }
  const xaxis = spanning(costs(points).filter(known), 3);
  chart("cost", traces, layout(metric(over).axis, metric(name).axis, { xaxis, uirevision: name + over }), "No row has both numbers.");
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
    const counts = { // documents of each bin, below
      x: points.map(({ x }) => x), y: points.map(({ count }) => count), yaxis: "y2", mode: "lines", line: { color, width: 1.2, shape: "hvh" },
      legendgroup: String(group.id), name: "", showlegend: false, hoverinfo: "skip",
    };
    return [{
      x: points.map(({ x }) => x), y: points.map(({ y }) => y), customdata: points.map(({ count }) => count),
      mode: "lines+markers", line: { color, dash, width: 1.6 }, marker: { color, symbol, size: 6 },
      name: escaped(label(group)), legendgroup: String(group.id),
      hovertemplate: `predicted %{x:.3f}, observed %{y:.3f}, %{customdata:,} documents<extra>${escaped(group.name)}</extra>`,
    }, counts];
  });
  const most = Math.max(FEW, ...traces.filter(({ yaxis }) => yaxis).flatMap(({ y }) => y));
  const decades = Math.max(1, Math.floor(Math.log10(most) / 2)); // between ticks, of which there is room for three
  const diagonal = { type: "line", x0: 0, y0: 0, x1: end, y1: end, line: { color: css("--muted"), width: 1, dash: "dot" }, layer: "below" };
  chart("reliability", traces, layout("Predicted P(click)", "Click rate", {
    shapes: [diagonal], uirevision: chosen, xaxis: { anchor: "y2" }, yaxis: { domain: [0.3, 1] },
    yaxis2: { domain: [0, 0.2], type: "log", dtick: decades, tickformat: "~s", title: { text: "Documents", standoff: 8 } },
  }),
    "None of the rows drawn has a reliability curve (metric=calibration).");
}

// ---- differences to the baseline ----

// difference of a group's mean to the baseline's, with its test
function difference(group, name) {
  const [mean, base] = [group, state.baseline].map((one) => one.values[name]?.[0]);
  const value = known(mean) && known(base) && isComparable(name) ? mean - base : null;
  const tested = known(value) ? pValue(group, name) : null;
  const sure = tested && tested.p < D.significant;
  const verdict = !tested ? "not tested" : !sure ? "not significant"
    : !metric(name).direction ? "different" : value * metric(name).direction > 0 ? "better" : "worse";
  const at = state.baseline ? group.comparison.baselines.indexOf(state.baseline.id) : -1;
  const texts = group.comparison.differences[name]?.[at]?.[group.at] ?? ["–", ""];
  return { value, tested, sure, verdict, half: tested?.half ?? null, texts };
}

function against() {
  const name = $("against-metric").value;
  const { baseline } = state;
  const others = baseline ? visible().filter((group) => group !== baseline && group.comparison === baseline.comparison) : [];
  forest(name, others.filter((group) => known(difference(group, name).value)));
  const columns = state.columns.map((one) => {
    const found = others.map((group) => difference(group, one));
    return found.map(({ texts: [text, error], tested, verdict }) => {
      return `<td class="number ${verdict}" title="${tested ? escaped(pText(tested.p)) : ""}">${text}<span class="mark">${stars(tested)}</span>
        <small>${error ? `${error} · ` : ""}${verdict}</small></td>`;
    });
  });
  $("against").tHead.innerHTML = baseline ? `<tr><th scope="col">Model</th>${state.columns.map((one) => `<th scope="col" class="number">${escaped(metric(one).short)}${ARROWS[metric(one).direction + 1]}</th>`).join("")}</tr>` : "";
  $("against").tBodies[0].innerHTML = others.map((group, row) => `<tr><th scope="row">${escaped(group.name)}</th>${columns.map((cells) => cells[row]).join("")}</tr>`).join("");
  labelled($("against"));
  const unit = baseline?.comparison.tests[name]?.unit;
  $("against-about").textContent = !baseline ? "Choose one test set: runs on different ones cannot be compared in pairs."
    : `Baseline: ${baseline.name}. ${unit
      ? `Differences ± half their 95% intervals: paired t-test over ${unit}${unit !== "seeds" ? " (jackknife pseudo-values of the metric)" : ""}, p corrected by Holm's method for ${baseline.comparison.groups.length === 2 ? "one comparison" : `${baseline.comparison.groups.length - 1} comparisons`}. Open marks are not significant.`
      : "There is nothing to test: runs kept no values per query (keep_values=true) and share fewer than two seeds."}`;
}

function forest(name, groups) {
  const found = groups.map((group) => difference(group, name));
  const ends = found.map(({ value, half }, at) => [at, [value - (half ?? 0), value + (half ?? 0)]]);
  const { far, range } = outliers(new Map([["baseline", [0, 0]], ...ends]));
  const texts = groups.map((group, at) => label(group) + (far.has(at) ? BEYOND : ""));
  const room = $("forest").clientWidth / LETTER;
  const isAbove = Math.max(0, ...texts.map((text) => text.length)) > 0.35 * room; // names, which would leave no room beside
  const names = texts.map((text) => broken(escaped(text), 0.8 * room));
  const color = (group) => (isShown(group) ? look(group).color : css("--muted"));
  const trace = {
    x: found.map(({ value }) => value), y: groups.map((_, at) => -at), mode: "markers",
    marker: { size: 9, color: groups.map((group, at) => (found[at].sure || !found[at].tested ? color(group) : css("--card"))), line: { width: 2, color: groups.map(color) } },
    error_x: { array: found.map(({ half }) => half ?? 0), visible: found.some(({ half }) => half > 0), thickness: 1.6, width: 4, color: css("--muted") },
    hovertext: groups.map((group, at) => `${escaped(group.name)}<br>${found[at].texts.filter(Boolean).join(" ")}${found[at].tested ? `, ${escaped(pText(found[at].tested.p))}` : ""}`), hoverinfo: "text",
  };
  const way = ["left\u00a0is\u00a0better", "", "right\u00a0is\u00a0better"][metric(name).direction + 1];
  const format = layout(`Difference in ${metric(name).short} to ${state.baseline ? alone(state.baseline) : ""}${way ? ` (${way})` : ""}`, "", {
    yaxis: { tickvals: groups.map((_, at) => -at), ticktext: isAbove ? names.map(() => "") : names, range: [0.6 - groups.length, 0.6], zeroline: false, fixedrange: true },
    xaxis: { exponentformat: "power", zeroline: true, zerolinecolor: css("--text"), zerolinewidth: 1.5, ...(range ? { range } : {}) }, uirevision: name,
  });
  const lines = Math.max(1, ...names.map((name) => name.split("<br>").length));
  format.annotations = isAbove ? names.map((text, at) => ({ text, xref: "paper", x: 0, y: -at, xanchor: "left", yanchor: "bottom", yshift: 6, align: "left", showarrow: false })) : [];
  format.height = 110 + TOOLBAR + groups.length * (isAbove ? 24 + 18 * lines : 30);
  chart("forest", groups.length ? [trace] : [], { ...format, showlegend: false }, "No other row has this metric.");
}

function diff() {
  const [a, b] = [D.runs[$("diff-a").value], D.runs[$("diff-b").value]];
  const rows = D.settings.map((key, at) => [key, a.settings[at], b.settings[at]]).filter(([, x, y]) => x !== y);
  const environment = [...new Set([...Object.keys(a.environment), ...Object.keys(b.environment)])]
    .map((key) => [`environment.${key}`, a.environment[key], b.environment[key]]).filter(([, x, y]) => x !== y);
  const cell = (value) => (known(value) ? escaped(value) : "–");
  const head = (run) => `<th scope="col">${escaped(run.group.name)}<small><a href="${escaped(link(run))}">${escaped(run.folder)}</a></small></th>`;
  $("diff").tHead.innerHTML = `<tr><th scope="col">Key</th>${head(a)}${head(b)}</tr>`;
  $("diff").tBodies[0].innerHTML = [...rows, ...environment].map(([key, x, y]) => `<tr><td>${escaped(key)}</td><td>${cell(x)}</td><td>${cell(y)}</td></tr>`).join("")
    || '<tr><td colspan="3">The configurations are the same.</td></tr>';
  labelled($("diff"));
}

const charts = {
  ranks: perRank, examination, learning, cost, reliability, parallel, scatter, search: searched, against, diff, chain: chainResults, online: onlineResults,
};
// the element that is watched for each chart
const watched = { against: "forest", search: "history" };

const stale = new Set();
const inView = new Set();

function refresh(name) {
  stale.delete(name);
  charts[name]();
}

// charts out of view are drawn when they come into view
const watcher = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
  const name = Object.keys(watched).find((key) => watched[key] === target.id) ?? target.id;
  inView[isIntersecting ? "add" : "delete"](name);
  if (isIntersecting && stale.has(name)) refresh(name);
}), { rootMargin: "200px" });

function all() {
  leaderboard();
  for (const name of Object.keys(charts)) {
    if (inView.has(name)) refresh(name);
    else stale.add(name);
  }
}
