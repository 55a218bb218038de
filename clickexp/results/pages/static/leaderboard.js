// ---- leaderboard ----

const ARROWS = ["\u00a0↓", "", "\u00a0↑"];

// a value of a group and its uncertainty as text
const textsOf = (group, name) => group.comparison.texts[name]?.[group.at] ?? ["–", ""];

function places(groups, name) {
  const { direction } = metric(name);
  const found = new Map();
  if (!direction) return found;
  for (const comparison of comparisons()) {
    const own = groups.filter((group) => group.comparison === comparison && known(group.values[name]?.[0]));
    const asShown = (group) => Number(textsOf(group, name)[0]);
    const values = [...new Set(own.map(asShown))].sort((a, b) => (b - a) * direction);
    if (values.length < 2) continue;
    for (const group of own) {
      const place = values.indexOf(asShown(group));
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
  const half = tests[name].half[baselines.indexOf(baseline.id)][groups.indexOf(group.id)];
  return known(p) ? { p, half, unit: tests[name].unit } : null;
}

function secondsCell({ seconds: training, compiling }) {
  return `<td class="number">${seconds(training)}${known(compiling) ? `<small>+ ${seconds(compiling)} compiling</small>` : ""}</td>`;
}

// what a cell of a metric holds: text, its uncertainty, place and stars
function metricCells(groups, name) {
  const best = places(groups, name);
  return new Map(groups.map((group) => {
    const [value, deviation] = textsOf(group, name);
    return [group, { text: value, deviation, place: best.get(group) ?? "", stars: stars(pValue(group, name)) }];
  }));
}

const stars = (tested) => (!tested ? "" : tested.p < 0.01 ? "**" : tested.p < D.significant ? "*" : "");

function metricCell(group, name, { text: value, deviation, place, stars: marks }) {
  const tested = pValue(group, name);
  const hints = [...(group.hints[name] ?? [])];
  if (tested) hints.push(`${pText(tested.p)} against ${state.baseline.name}, over ${tested.unit}`);
  const mark = marks ? `<span class="mark">${marks}</span>` : "";
  return `<td class="number ${place}" title="${escaped(hints.join("; "))}"><span>${value}</span>${mark}${deviation ? `<small>${deviation}</small>` : ""}</td>`;
}

function columnList() {
  const settings = keys().map((key) => ({ key, title: shortKey(key), cell: (group) => `<td>${escaped(text(group.overrides[key]))}</td>` }));
  const metrics = state.columns.map((name) => ({ key: name, title: `${metric(name).short}${ARROWS[metric(name).direction + 1]}`, number: true, metric: name }));
  const towers = new Set(mine().map((group) => group.tower)).size > 1;
  const own = [
    ...(towers ? [{ key: "tower", title: "Tower", cell: (group) => `<td>${escaped(group.tower || "–")}</td>` }] : []),
    ...settings,
  ];
  return [
    { key: "name", title: "Model", cell: nameCell, name: true },
    ...(state.comparison === ALL ? [{ key: "test-set", title: "Test set", cell: (group) => `<td>${escaped(group.comparison.name)}</td>` }] : []),
    ...(narrow() || state.compact ? metrics : [...own, ...metrics]),
    ...(state.compact > 1 ? [] : [
      { key: "seconds", title: "Time (s)", number: true, cell: secondsCell },
      { key: "parameters", title: "Parameters", number: true, cell: (group) => `<td class="number">${shown(group.parameters)}</td>` },
    ]),
    { key: "seeds", title: "Runs", number: true, cell: runsCell },
  ];
}

function nameCell(group) {
  const own = keys().filter((key) => known(group.overrides[key])).map((key) => `${shortKey(key)} ${group.overrides[key]}`);
  const settings = narrow() || state.compact ? `<small>${escaped(own.join(" · "))}</small>` : "";
  const color = isShown(group) ? look(group).color : "transparent";
  const baseline = group === state.baseline && group.comparison.groups.length > 1 ? ' <span class="tag">baseline</span>' : "";
  const chosen = group.chosen ? ' <span class="tag">chosen</span>' : "";
  return `<td class="name"><label><input type="checkbox" data-draw="${group.id}" ${isShown(group) ? "checked" : ""}><span class="swatch" style="background:${color}"></span>
    <span>${escaped(group.rest)}${settings}</span></label>${group.runs.length === 1 ? reportLink(group.runs[0]) : ""}${chosen}${baseline}</td>`;
}

function reportLink(run) {
  return run.report ? ` <a href="${escaped(link(run))}${run.report}" aria-label="report on ${escaped(run.folder)}">report</a>` : "";
}

function runsCell(group) {
  const open = state.open.has(group);
  return `<td class="number expand"><button type="button" data-open="${group.id}" aria-expanded="${open}"
    aria-label="${group.runs.length} runs of ${escaped(group.name)}">${group.runs.length} <span aria-hidden="true">${open ? "▾" : "▸"}</span></button></td>`;
}

function runRows(group, columns) {
  return group.runs.map((run) => `<tr class="runs">${columns.map((column) => {
    if (column.name) return `<td class="name">↳ <a href="${escaped(link(run))}">${escaped(run.folder)}</a>${reportLink(run)}${run.chosen ? ' <span class="tag">chosen</span>' : ""}</td>`;
    if (column.metric) return `<td class="number">${run.texts[column.metric] ?? "–"}</td>`;
    if (column.key === "seconds") return secondsCell(run);
    if (column.key === "seeds") return `<td class="number">${known(run.seed) ? `seed ${run.seed}` : ""}</td>`;
    return "<td></td>";
  }).join("")}</tr>`).join("");
}

function leaderboard() {
  const place = $("leaderboard").parentElement;
  for (state.compact = 0; state.compact < 3; state.compact += 1) {
    table();
    if (narrow() || place.scrollWidth <= place.clientWidth) break;
  }
  describe();
}

// names of columns for narrow screens, where each row is a block
function labelled(one) {
  const titles = [...one.tHead.querySelectorAll("th")].map((cell) => cell.firstChild?.textContent.trim() ?? "");
  for (const row of one.tBodies[0].rows) [...row.cells].forEach((cell, at) => { cell.dataset.label = titles[at] ?? ""; });
}

function table() {
  const groups = visible();
  const columns = columnList();
  const cells = Object.fromEntries(state.columns.map((name) => [name, metricCells(groups, name)]));
  $("leaderboard").tHead.innerHTML = `<tr>${columns.map(({ key, title, number, name }) => {
    const sort = state.sort.key === key ? ` aria-sort="${state.sort.up ? "ascending" : "descending"}"` : "";
    return `<th scope="col" class="${number ? "number" : ""} ${name ? "name" : ""}"${sort}><button type="button"
      data-sort="${escaped(key)}" title="${escaped(key in D.metrics ? metric(key).axis : key)}">${escaped(title)}</button></th>`;
  }).join("")}</tr>`;
  $("leaderboard").tBodies[0].innerHTML = groups.map((group) => {
    const row = columns.map((column) => (column.metric
      ? metricCell(group, column.metric, cells[column.metric].get(group))
      : column.cell(group)));
    return `<tr>${row.join("")}</tr>${state.open.has(group) ? runRows(group, columns) : ""}`;
  }).join("");
  labelled($("leaderboard"));
  $("count").textContent = `${groups.length} of ${mine().length} rows, ${drawn().filter(isShown).length} drawn`;
}

function describe() {
  const chosen = comparisons();
  $("conclusion").textContent = chosen.map((one) => one.conclusions[state.baseline?.id ?? one.baseline]).filter(Boolean).join(" ");
  $("described").textContent = chosen.map((one) => `${one.name}: ${one.about}`).join("; ");
  const warnings = [...new Set(chosen.flatMap((one) => one.warnings))];
  if (chosen.length > 1) {
    warnings.unshift(`These rows were tested on ${chosen.length} different test sets: numbers of different test sets cannot be ranked. Best and second are marked within each`);
  }
  $("warnings").hidden = !warnings.length;
  $("warnings").textContent = `${warnings.join(". ")}.`;
  const ofRuns = [...new Set(chosen.flatMap((one) => one.runWarnings))];
  $("run-warnings").hidden = !ofRuns.length;
  $("run-warnings").querySelector("summary").textContent = `${ofRuns.length} ${ofRuns.length === 1 ? "warning" : "warnings"} of runs`;
  $("run-warnings").querySelector("ul").innerHTML = ofRuns.map((one) => `<li>${escaped(one)}</li>`).join("");
  const units = [...new Set(chosen.flatMap((one) => state.columns.map((name) => one.tests[name]?.unit).filter(Boolean)))];
  const marks = !state.baseline ? " Choose one test set to test against a baseline."
    : units.length ? ` * p < ${D.significant}, ** p < 0.01 against ${state.baseline.name}: paired t-test over ${units.join(" or ")}, corrected by Holm's method for all rows.`
    : " No tests: they need runs with keep_values=true, or several seeds in common.";
  const choices = [...new Set(chosen.map((one) => one.choice).filter(Boolean))].map((choice) => `${choice}. `).join("");
  const over = [...new Set(chosen.map((one) => one.meaning))].join("; ").replace(/^./, (sign) => sign.toUpperCase());
  $("legend").textContent = mine().length < 2 ? "" : `${choices}${over}. Best in bold, second underlined.${marks}`;
}
