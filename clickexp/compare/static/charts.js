// ---- charts ----

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
  const hover = (group) => `${escaped(group.name)}<br>${escaped(metric(name).short)} ${shown(group.values[name][0])}<br>${over === "seconds" ? `${seconds(group[over])} s, and ${seconds(group.compiling)} s compiling` : `${shown(group[over], 0)} parameters`}`;
  const scatter = (groups, own) => ({
    x: groups.map((group) => group[over]), y: groups.map((group) => group.values[name][0]), mode: "markers",
    text: groups.map(hover), hoverinfo: "text", ...own,
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
    : "There is nothing to test: runs kept no values per query (keep_values=true) and share fewer than two seeds."}`;
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

// charts out of view are drawn when they come into view
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
