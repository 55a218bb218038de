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
  const hints = [];
  if (known(low)) hints.push(`95% interval ${shown(low)} to ${shown(high)} over ${over}`);
  if (tested) hints.push(`${pText(tested.p)} against ${state.baseline.name}, over ${tested.unit}`);
  const interval = known(low) ? `<small>${shown(low)} to ${shown(high)}${over === "queries" ? " q" : ""}</small>` : "";
  const mark = stars ? `<span class="mark">${stars}</span>` : "";
  const deviation = known(sd) ? ` ± ${shown(sd)}` : "";
  return `<td class="number ${place ?? ""}" title="${escaped(hints.join("; "))}"><span>${shown(mean)}</span>${mark}${deviation}${interval}</td>`;
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
    return `<th scope="col" class="${number ? "number" : ""} ${name ? "name" : ""}"${sort}><button type="button"
      data-sort="${escaped(key)}" title="${escaped(key in D.metrics ? metric(key).axis : key)}">${escaped(title)}</button></th>`;
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
