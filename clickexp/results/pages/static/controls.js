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
  const comparable = metrics.filter(isComparable);
  state.columns = leading;
  state.sort = metric(leading[0]).direction ? bestFirst(leading[0]) : { key: null, up: true };
  state.baseline = state.comparison === ALL ? null : D.groups[chosen[0].baseline];
  state.open.clear();
  const named = (names) => names.map((name) => [name, metric(name).name]);
  const groups = mine();
  const runs = groups.flatMap((group) => group.runs);
  const perRank = [...new Set(groups.flatMap((group) => Object.keys(group.perRank)))].filter((name) => name !== "examination");
  const curves = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => name.includes("/") && isComparable(name));
  options("baseline", state.baseline ? chosen[0].baselines.map((id) => [id, D.groups[id].name]) : [], state.baseline?.id);
  // a row alone has none to be compared with
  const compared = chosen.some((one) => one.groups.length > 1);
  $("baseline").closest("label").hidden = !state.baseline || !compared;
  for (const id of ["against", "cost"]) $(id).closest("section").hidden = !compared || !comparable.length;
  $("ranks-difference").closest("label").hidden = !compared;
  const layouts = [...new Set(groups.flatMap((group) => Object.keys(layoutsOf(group))))];
  // a mean over layouts says little of any of them
  options("examination-layout", layouts.map((name) => [name, name]), layouts[0], "mean over sessions");
  $("examination-layout").closest("label").hidden = !layouts.length;
  $("examination").closest("section").hidden = !layouts.length && !groups.some((group) => group.perRank.examination);
  $("ranks").closest("section").hidden = !perRank.length;
  $("learning").closest("section").hidden = !curves.length;
  $("reliability").closest("section").hidden = !groups.some((group) => group.reliability);
  options("ranks-metric", named(perRank), perRank.includes("cond_ppl") ? "cond_ppl" : perRank[0]);
  // rankers know no metrics of clicks: a curve that few runs have would leave the chart all but empty
  const having = Object.fromEntries(curves.map((name) => [name, runs.filter((run) => run.curves[name]?.some(known)).length]));
  const shared = curves.filter((name) => 2 * having[name] >= Math.max(...Object.values(having)));
  const learned = leading.map((name) => (name.startsWith("val/") ? name : `val/${name}`)).find((name) => shared.includes(name));
  options("learning-metric", named(curves), learned ?? shared.find((name) => name.startsWith("val/")) ?? curves[0]);
  const tested = comparable.find((name) => !name.startsWith("val/")) ?? leading[0];
  for (const id of ["cost-metric", "against-metric"]) options(id, named(comparable), tested);
  options("parallel-metric", named(comparable), leading[0]);
  options("scatter-key", keys().map((key) => [key, shortKey(key)]), Object.entries(chosen[0].importances).filter(([key]) => key !== "model").sort(([, a], [, b]) => b - a)[0]?.[0]);
  for (const card of document.querySelectorAll("[data-hyperparameters]")) card.hidden = !keys().length || !comparable.length;
  for (const card of document.querySelectorAll("[data-search]")) card.hidden = !chosen[0].optimized || chosen.length > 1;
  for (const id of ["learning-over", "cost-over"]) $(id).selectedIndex = 0;
  $("ranks-difference").checked = state.baseline !== null && groups.length > 1;
  const ranks = Math.max(0, ...groups.map((group) => group.reliability?.documents[0]?.length ?? 0));
  options("reliability-rank", [[ALL, "all"], ...Array.from({ length: ranks }, (_, at) => [at, at + 1])], ALL);
  $("diff").closest("section").hidden = runs.length < 2;
  options("diff-a", runs.map((run) => [run.id, runName(run)]), runs[0].id);
  options("diff-b", runs.map((run) => [run.id, runName(run)]), (runs.find((run) => run.group !== runs[0].group) ?? runs.at(-1)).id);
  $("column-choices").innerHTML = metrics.map((name) => `<label><input type="checkbox" data-column="${escaped(name)}"
    ${state.columns.includes(name) ? "checked" : ""}> ${escaped(metric(name).name)}</label>`).join("");
  filterChoices();
  draw(visible().slice(0, FIRST));
  defaults = { ...current(), set: "0" };
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
  $("baseline").onchange = (event) => { state.baseline = D.groups[event.target.value]; all(); };
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
    refresh("against");
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
    ["cost-metric", "cost"], ["cost-over", "cost"], ["reliability-rank", "reliability"], ["examination-layout", "examination"], ["scatter-key", "scatter"],
    ["against-metric", "against"], ["diff-a", "diff"], ["diff-b", "diff"], ["chain-which", "chain"], ["chain-what", "chain"], ["online-pair", "online"], ["online-metric", "online"]]) $(id).onchange = charts[name];
  $("parallel-metric").onchange = () => ["parallel", "scatter"].forEach(refresh);
  for (const name of Object.keys(charts)) watcher.observe($(watched[name] ?? name));
  let shownIn = null;
  window.addEventListener("beforeprint", () => {
    shownIn = document.documentElement.dataset.theme;
    theme("light");
    document.body.classList.add("printing");
    document.querySelector("header details").open = true;
    leaderboard();
    Object.keys(charts).forEach(refresh);
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    theme(shownIn);
    all();
  });
  for (const format of Object.keys(FORMATS)) $(`copy-${format.toLowerCase()}`).onclick = () => copy(format);
  for (const kind of ["change", "input", "click"]) document.addEventListener(kind, later(remember));
  window.addEventListener("hashchange", recall);
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
  D.comparisons.forEach((one) => one.groups.forEach((id, at) => Object.assign(D.groups[id], { comparison: one, at })));
  D.groups.forEach((group, id) => {
    Object.assign(group, { id, runs: group.runs.map((at) => Object.assign(D.runs[at], { id: at, group })) });
  });
  $("about").textContent = [D.about, ...D.environment].join(" · ");
  $("commands").innerHTML = D.commands.map((one) => `<code>${escaped(one)}</code>`).join("");
  const sets = D.comparisons.map((one, at) => [at, `${one.name} (${one.groups.length})`]);
  options("test-set", sets.length > 1 ? [...sets, [ALL, `all ${sets.length} test sets`]] : sets, 0);
  if (D.skipped.length) {
    $("skipped").hidden = false;
    $("skipped").querySelector("summary").textContent = `${D.skipped.length} ${D.skipped.length === 1 ? "folder" : "folders"} skipped`;
    $("skipped").querySelector("ul").innerHTML = D.skipped.map((one) => `<li>${escaped(one)}</li>`).join("");
  }
  chainChoices();
  onlineChoices();
  $("choices").hidden = false;
  $("loading").remove();
  listen();
  recall();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  $("loading").textContent = `The page could not be shown: ${error.message}. It needs a browser of 2023 or later.`;
  throw error;
});
