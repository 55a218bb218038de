// ---- rankers judged by users ----

const JUDGED = {
  click_rate: "Click rate", clicks_per_session: "Clicks per session", reciprocal_rank: "Reciprocal rank of the first click", abandonment: "Abandonment",
  preference: "Interleaving: preference", interleaving: "Interleaving: sessions won, and preference",
};
const onlineName = (one) => `${one.models[0]} (${one.a}) and ${one.models[1]} (${one.b})`;
const estimates = (one, name) => one.days.map((day) => (name === "preference" ? day.interleaving.preference : day.ab.metrics[name].difference));

function onlineTable({ header, rows, better }) {
  const cell = (text, row, column) => `<td class="number${["a", "b"][column] === better[row] ? " best" : ""}">${escaped(text)}</td>`;
  $("online-table").tHead.innerHTML = `<tr>${["Metric", ...header.slice(1)].map((text, at) => `<th scope="col"${at ? ' class="number"' : ""}>${escaped(text)}</th>`).join("")}</tr>`;
  $("online-table").tBodies[0].innerHTML = rows.map(([name, ...texts], row) => `<tr><th scope="row">${JUDGED[name] ?? escaped(name)}</th>${texts.map((text, column) => cell(text, row, column)).join("")}</tr>`).join("");
  labelled($("online-table"));
}

function onlineResults() {
  const one = D.online[Number($("online-pair").value)];
  if (!one) return;
  const name = $("online-metric").value;
  const own = estimates(one, name);
  const [x, colors] = [one.days.map((day) => day.day), dark() ? DARK_COLORS : D.colors];
  const band = (key, color, text) => ({
    x: [...x, ...[...x].reverse()], y: [...own.map((each) => each[`${key}low`]), ...own.map((each) => each[`${key}high`]).reverse()],
    fill: "toself", fillcolor: translucent(color), line: { width: 1, color, dash: key ? "dash" : "solid" }, mode: "lines", name: text, hoverinfo: "skip",
  });
  const percent = `${Number((100 * (1 - one.alpha)).toFixed(6))}%`;
  const zero = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: css("--muted"), width: 1 }, layer: "below" };
  chart("online", [
    band("anytime_", colors[1], `${percent} interval at all looks together`),
    band("", colors[0], `${percent} interval at one look`),
    {
      x, y: own.map((each) => each.value), mode: "lines+markers", line: { color: colors[0], width: 2 }, marker: { color: colors[0], size: 6 }, name: "B − A",
      customdata: own.map((each) => [each.low, each.high, each.anytime_low, each.anytime_high]),
      hovertemplate: "day %{x}: %{y:.4f}<br>one look %{customdata[0]:.4f} to %{customdata[1]:.4f}<br>all looks %{customdata[2]:.4f} to %{customdata[3]:.4f}<extra></extra>",
    },
  ], layout("Day", `${JUDGED[name] ?? name}, B − A`, { shapes: [zero], xaxis: { dtick: x.length > 20 ? undefined : 1 }, uirevision: `${$("online-pair").value}${name}` }));
  onlineTable(one);
  const units = one.users ? ` of ${one.users.toLocaleString("en")} users` : "";
  $("online-about").textContent = `A is ${one.models[0]} (${one.a}), B is ${one.models[1]} (${one.b}). ${one.sessions.toLocaleString("en")} sessions${units} `
    + `of an A/B test, and as many of team-draft interleaving, on ${one.lists.toLocaleString("en")} lists; ${one.positions} documents shown; clicks of ${one.user}; `
    + `${(100 * one.same).toFixed(0)}% of lists are ordered alike. Intervals at all looks hold if one looks every day. Detectable, and needed for this difference: with power ${one.power}.`
    + one.caveats.map((each) => ` ${each}`).join("");
}

// fills the choices of the section, which is hidden where nothing was judged
function onlineChoices() {
  $("online-results").hidden = !D.online.length;
  if (!D.online.length) return;
  options("online-pair", D.online.map((one, at) => [at, onlineName(one)]), 0);
  $("online-pair").closest("label").hidden = D.online.length < 2;
  const names = [...Object.keys(D.online[0].days.at(-1).ab.metrics), "preference"];
  options("online-metric", names.map((name) => [name, JUDGED[name] ?? name]), names[0]);
}
