// ---- what charts have in common ----

const printing = () => document.body.classList.contains("printing");
const narrow = () => window.innerWidth < 700 && !printing();
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

// short names for legends: the settings that distinguish rows, without the keys
const label = (group) => [group.rest, ...unnamed().map((key) => group.overrides[key]).filter(known).map(shortened)].join(" · ");
// settings that names do not have already, as those of rankers have their losses
const isNamed = (group, value) => group.rest.split(/[^\w.-]+/).includes(String(value));
const unnamed = () => keys().filter((key) => mine().some((group) => known(group.overrides[key]) && !isNamed(group, group.overrides[key])));
// long text, such as a path, without its middle; names in hints are whole
const shortened = (value) => (String(value).length > 28 ? `${String(value).slice(0, 9)}…${String(value).slice(-18)}` : value);
// the name of a baseline on an axis, where no other row has it, too
const alone = (base) => (mine().some((group) => group !== base && group.rest === base.rest) ? "the baseline" : base.rest);
const translucent = (color) => `rgba(${[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).join()},0.16)`;

const [LINE, GAP, LETTER, MARK] = [16, 13, 6.3, 50]; // of a legend: height of a line, space between rows, width of a letter and of a mark
const TOOLBAR = 32; // its height, above the axes
const [TITLE, TITLE_LINE, HEIGHT, BESIDE] = [8.5, 20, 260, 90]; // of the title of an axis: width of a letter, height of a line; of axes: height, and what is beside them

// a number in three digits: 0.05, 200, 20k
const brief = (value) => (value >= 1e4 ? Intl.NumberFormat("en", { notation: "compact" }).format(value) : String(Number(value.toPrecision(3))));

function layout(x, y, more = {}) {
  const axis = (title, own = {}) => ({
    title: { text: escaped(title).replaceAll("\n", "<br>"), standoff: 8 }, gridcolor: css("--grid"), linecolor: css("--line"),
    zeroline: false, automargin: true, tickcolor: css("--line"), ticks: "outside", ticklen: 4, ...own,
  });
  return {
    margin: { l: 10, r: 12, t: TOOLBAR, b: 10 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--muted"), activecolor: css("--accent") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: css("--text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") }, namelength: -1 },
    legend: { orientation: "h", xref: "container", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", font: { size: 12 }, maxheight: 1 },
    ...(more.yaxis2 ? { yaxis2: axis("", more.yaxis2) } : {}),
    xaxis: axis(x, more.xaxis), yaxis: axis(y.replace(/ (?=\([^)]* [^)]*\)$)/, "\n"), { exponentformat: "power", ...more.yaxis }), showlegend: true, shapes: more.shapes ?? [],
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
  format.height = (printing() ? 270 : 320) + TOOLBAR + legend; // two cards to a sheet
  format.margin.b = 60 + legend;
}

// of the lowest and the highest value by name: names of the few that lie far off, as in the figures, and the range of the others
function outliers(ends) {
  const names = [...ends.keys()];
  const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
  const bounds = [...ends.values()];
  const middle = median(bounds.map(([low, high]) => (low + high) / 2));
  const extents = bounds.map(([low, high]) => high - low).filter((extent) => extent > 0); // a baseline is flat
  const reach = 4 * (extents.length ? median(extents) : 0) + 10 * median(bounds.map(([low, high]) => Math.abs((low + high) / 2 - middle)));
  const far = new Set(names.filter((name) => ends.get(name)[0] < middle - reach || ends.get(name)[1] > middle + reach));
  const near = names.filter((name) => !far.has(name)).map((name) => ends.get(name));
  if (names.length < 3 || !far.size || !near.length) return { far: new Set() };
  const [low, high] = [Math.min(...near.map(([value]) => value)), Math.max(...near.map(([, value]) => value))];
  return { far, range: [low - 0.06 * (high - low), high + 0.06 * (high - low)] };
}

const BEYOND = " (beyond the axis)";

// fits the axis to most of the curves where a few lie far off, and marks their names
function withoutOutliers(traces, format) {
  const curves = traces.filter((trace) => !trace.fill && !trace.yaxis);
  const names = [...new Set(curves.map((trace) => trace.legendgroup))].filter(known);
  const { far, range } = outliers(new Map(names.map((name) => {
    const values = curves.filter((trace) => trace.legendgroup === name).flatMap((trace) => trace.y).filter(known);
    return [name, [Math.min(...values), Math.max(...values)]];
  })));
  if (range) format.yaxis.range = range;
  for (const trace of traces) if (far.has(trace.legendgroup)) trace.name += BEYOND;
}

// text in lines of so many letters; a longer word stays whole
const broken = (text, most) => text.split("<br>").flatMap((line) => line.split(" ").reduce((lines, word) => {
  const last = lines.pop();
  return last && last.length + word.length >= most ? [...lines, last, word] : [...lines, last ? `${last} ${word}` : word];
}, [""])).join("<br>");

// titles no longer than their axes, with room for the lines below these
function breakTitles(place, format) {
  const names = Math.max(0, ...(format.yaxis.ticktext ?? []).flatMap((name) => name.split("<br>")).map((name) => name.length));
  const width = place.clientWidth - (names ? names * LETTER + 40 : BESIDE);
  const [below, beside] = [format.xaxis.title, format.yaxis.title];
  const lines = below.text.split("<br>").length;
  below.text = broken(below.text, width / TITLE);
  beside.text = broken(beside.text, HEIGHT / TITLE);
  const more = (below.text.split("<br>").length - lines) * TITLE_LINE;
  if (format.height) format.height += more;
  if (format.showlegend) format.margin.b += more;
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
  breakTitles(place, format);
  for (const trace of traces) if (known(trace.legendgroup) && state.hidden.has(D.groups[trace.legendgroup])) trace.visible = "legendonly";
  if (printing()) format.width = place.clientWidth;
  Plotly.react(place, traces, format, {
    responsive: true, displaylogo: false, showTips: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg", filename: `clickexp-${id}` },
  });
  place.removeAllListeners("plotly_legendclick");
  place.removeAllListeners("plotly_legenddoubleclick");
  place.on("plotly_legendclick", ({ data, curveNumber }) => hide(data[curveNumber], (group) => {
    if (!state.hidden.delete(group)) state.hidden.add(group);
  }));
  place.on("plotly_legenddoubleclick", ({ data, curveNumber }) => hide(data[curveNumber], (group) => {
    const others = drawn().filter((other) => other !== group);
    const alone = others.every((other) => state.hidden.has(other));
    state.hidden = new Set(alone ? [] : others);
  }));
}

// the legend of any chart acts on all charts and on the rows
function hide({ legendgroup }, change) {
  if (known(legendgroup)) {
    change(D.groups[legendgroup]);
    setTimeout(all);
  }
  return false; // instead of what Plotly does, in this chart alone
}

// an axis of numbers: logarithmic where the largest is more than `ratio` times the smallest, with ticks at 1, 2, 5
function spanning(values, ratio = 10) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!(low > 0 && high > ratio * low)) return {};
  const powers = Array.from({ length: Math.ceil(Math.log10(high / low)) + 2 }, (_, at) => Math.floor(Math.log10(low)) + at);
  const digits = powers.length > 5 ? [1] : [1, 2, 5];
  const tickvals = powers.flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)));
  return { type: "log", tickvals, ticktext: tickvals.map(brief) };
}
