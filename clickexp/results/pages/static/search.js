// ---- hyperparameters and searches ----

const numeric = (values) => values.length > 0 && values.every((value) => typeof value === "number");
const setting = (group, key) => (key === "model" ? group.model : group.overrides[key]);
const varied = (groups) => keys().filter((key) => new Set(groups.map((group) => facts(group)[key])).size > 1);

// an axis of parallel coordinates: numbers at their places, on a logarithmic axis where they span a decade
function dimension(groups, key) {
  const values = groups.map((group) => setting(group, key));
  const label = escaped(key === "model" ? "model" : shortKey(key));
  const distinct = [...new Set(values)];
  if (!numeric(values)) {
    const texts = [...new Set(values.map(text))].sort(inOrder);
    const places = values.map((value) => texts.indexOf(text(value)));
    const short = texts.map(shortened);
    const ticktext = (new Set(short).size < texts.length ? texts : short).map(escaped); // of equal ones Plotly would draw one
    return { label, values: places, tickvals: texts.map((_, at) => at), ticktext, range: [-0.3, texts.length - 0.7] };
  }
  const { type, tickvals } = spanning(values);
  const scale = type === "log" ? Math.log10 : Number;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const sorted = [...distinct].sort((a, b) => a - b);
  const apart = sorted.every((value, at) => !at || scale(value) - scale(sorted[at - 1]) > (scale(high) - scale(low)) / 15);
  const ticks = distinct.length <= MANY && apart ? sorted : tickvals?.filter((value) => value >= low && value <= high);
  return { label, values: values.map(scale), ...(ticks ? { tickvals: ticks.map(scale), ticktext: ticks.map(brief) } : {}) };
}

function parallel() {
  const name = $("parallel-metric").value;
  const groups = visible().filter((group) => known(group.values[name]?.[0]));
  const found = varied(groups);
  if (!found.length || groups.length < 2) {
    chart("parallel", [], {}, "No two of the rows differ in a hyperparameter.");
    return;
  }
  const models = new Set(groups.map((group) => group.model)).size > 1;
  const dimensions = [...(models ? ["model"] : []), ...found].map((key) => dimension(groups, key));
  const values = groups.map((group) => group.values[name][0]);
  dimensions.push({ label: escaped(metric(name).short), values, tickformat: ".4~g" });
  const trace = {
    type: "parcoords", dimensions, labelfont: { size: 13, color: css("--text") }, tickfont: { size: 11, color: css("--text") },
    rangefont: { size: 1, color: "rgba(0,0,0,0)" },
    line: {
      color: values, colorscale: [[0, css("--weak")], [1, css("--accent")]], reversescale: metric(name).direction < 0, showscale: !narrow(),
      colorbar: { title: { text: escaped(metric(name).short), side: "top" }, thickness: 12, outlinewidth: 0, tickformat: ".4~g", tickfont: { color: css("--text") } },
    },
    unselected: { line: { color: css("--line"), opacity: 0.3 } },
  };
  const letters = ({ ticktext = [] }) => LETTER * Math.max(4, ...ticktext.map((one) => one.length));
  const format = { ...layout("", ""), height: 420, margin: { l: 20 + letters(dimensions[0]), r: narrow() ? 40 : 20, t: 40 + TOOLBAR, b: 30 }, showlegend: false };
  $("parallel").style.minWidth = `${Math.max(280, letters(dimensions[0]) + dimensions.length * Math.max(narrow() ? 75 : 95, ...dimensions.slice(1).map(letters)))}px`;
  chart("parallel", [trace], format);
}

// points of rows, one trace per model
function byModel(groups, x, y) {
  const models = [...new Set(groups.map((group) => group.model))];
  return models.map((model, at) => {
    const own = groups.filter((group) => group.model === model);
    return {
      name: escaped(model), x: own.map(x), y: own.map(y), mode: "markers",
      text: own.map((group) => escaped(group.name)), hovertemplate: "%{text}<br>%{x}: %{y:.5~g}<extra></extra>",
      marker: {
        color: (dark() ? DARK_COLORS : D.colors)[at % D.colors.length], symbol: SYMBOLS[at % SYMBOLS.length], size: own.map((group) => (group.chosen ? 15 : 8)),
        line: { width: own.map((group) => (group.chosen ? 2.5 : 0)), color: css("--text") },
      },
    };
  });
}

// the metric over one hyperparameter
function scatter() {
  const [name, key] = [$("parallel-metric").value, $("scatter-key").value];
  const groups = visible().filter((group) => known(group.values[name]?.[0]) && known(setting(group, key)));
  const values = groups.map((group) => setting(group, key));
  const xaxis = numeric(values) ? spanning(values) : { type: "category", categoryorder: "category ascending" };
  const traces = groups.length ? byModel(groups, (group) => (numeric(values) ? setting(group, key) : text(setting(group, key))), (group) => group.values[name][0]) : [];
  const format = layout(shortKey(key), metric(name).axis, { xaxis, uirevision: name + key });
  chart("scatter", traces, { ...format, showlegend: traces.length > 1 }, "No row has both.");
}

// trials in their order with the best so far, and the importances
function searched() {
  const [one] = comparisons();
  if (!one.optimized) return;
  const name = one.optimized;
  const trials = mine().filter((group) => group.comparison === one && known(group.values[name]?.[0]))
    .sort((a, b) => inOrder(a.runs[0].folder, b.runs[0].folder));
  const order = new Map(trials.map((group, at) => [group, at + 1]));
  const better = metric(name).direction < 0 ? Math.min : Math.max;
  const best = trials.map((_, at) => better(...trials.slice(0, at + 1).map((group) => group.values[name][0])));
  const line = { name: "best so far", x: [...order.values()], y: best, mode: "lines", line: { shape: "hv", color: css("--muted"), width: 1.6 }, hoverinfo: "skip" };
  chart("history", [line, ...byModel(trials, (group) => order.get(group), (group) => group.values[name][0])],
    layout("Finished trial", metric(name).axis, { xaxis: { dtick: Math.max(1, Math.round(trials.length / 10)) }, uirevision: name }));
  const shares = Object.entries(one.importances).sort(([, a], [, b]) => a - b);
  const bars = { type: "bar", orientation: "h", x: shares.map(([, share]) => share), y: shares.map(([key]) => escaped(key === "model" ? key : shortKey(key))), marker: { color: css("--accent") }, hovertemplate: "%{y}: %{x:.2f}<extra></extra>" };
  const format = layout(`Importance for ${metric(name).short}`, "", { xaxis: { range: [0, 1] } });
  chart("importance", shares.length ? [bars] : [], { ...format, height: 100 + TOOLBAR + 34 * shares.length, showlegend: false },
    "Importances need four finished trials, and Optuna where the comparison is made: pip install 'clickexp[search]'.");
}
