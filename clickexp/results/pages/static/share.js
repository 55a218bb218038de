// ---- what is shown, in the address; the leaderboard for the clipboard ----

const CONTROLS = ["ranks-metric", "ranks-difference", "learning-metric", "learning-over", "cost-metric", "cost-over", "reliability-rank", "examination-layout",
  "parallel-metric", "scatter-key", "against-metric", "diff-a", "diff-b", "chain-which", "chain-what", "online-pair", "online-metric"];
let defaults = {};

function current() {
  const filters = Object.entries(state.filters).filter(([, value]) => value !== "").map(([key, value]) => [`filter.${key}`, value]);
  const controls = CONTROLS.map((id) => [id, $(id).type === "checkbox" ? String($(id).checked) : $(id).value]);
  return Object.fromEntries([
    ["set", String(state.comparison)], ["baseline", String(state.baseline?.id ?? "")], ["search", state.search],
    ["sort", JSON.stringify([state.sort.key, state.sort.up])], ["columns", JSON.stringify(state.columns)],
    ["drawn", [...state.slots.keys()].filter(isShown).map((group) => group.id).join()], ...filters, ...controls,
  ]);
}

function remember() {
  const changed = Object.entries(current()).filter(([key, value]) => value !== (defaults[key] ?? ""));
  const address = changed.length ? `#${new URLSearchParams(changed)}` : location.pathname + location.search;
  if (location.hash.slice(1) !== address.slice(1) || !changed.length) history.replaceState(null, "", address);
}

// what the address holds; what this page does not have is left out
function recall() {
  const wanted = new Map(new URLSearchParams(location.hash.slice(1)));
  const list = (key) => { try { return [JSON.parse(wanted.get(key))].flat(); } catch { return []; } };
  const set = wanted.get("set");
  chooseComparison(set === ALL || D.comparisons[set] ? set : 0);
  const baseline = D.groups[wanted.get("baseline") || -1];
  if (baseline && state.baseline && state.baseline.comparison.baselines.includes(baseline.id)) {
    state.baseline = baseline;
    $("baseline").value = baseline.id;
  }
  state.search = $("search").value = wanted.get("search") ?? "";
  for (const [key, value] of wanted) {
    const choice = [...document.querySelectorAll("[data-filter]")].find((one) => `filter.${one.dataset.filter}` === key);
    if (choice && [...choice.options].some((option) => option.value === value)) choice.value = state.filters[choice.dataset.filter] = value;
  }
  if (wanted.has("sort") && columnList().some(({ key }) => key === list("sort")[0])) state.sort = { key: list("sort")[0], up: list("sort")[1] !== false };
  if (wanted.has("columns")) {
    state.columns = list("columns").filter((name) => comparisons().some((one) => one.metrics.includes(name)));
    for (const box of document.querySelectorAll("[data-column]")) box.checked = state.columns.includes(box.dataset.column);
  }
  if (wanted.has("drawn")) draw(wanted.get("drawn").split(",").map((id) => D.groups[id]).filter((group) => mine().includes(group)));
  for (const id of CONTROLS.filter((one) => wanted.has(one))) {
    if ($(id).type === "checkbox") $(id).checked = wanted.get(id) === "true";
    else if ([...$(id).options].some((option) => option.value === wanted.get(id))) $(id).value = wanted.get(id);
  }
  all();
}

// ---- clipboard ----

const TEX = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "↑": "$\\uparrow$", "↓": "$\\downarrow$", "±": "$\\pm$",
  "<": "$<$", ">": "$>$", "–": "--", "[": "{[}", ...Object.fromEntries([..."&%$#_{}"].map((sign) => [sign, `\\${sign}`])),
};
const tex = (text) => [...text].map((sign) => TEX[sign] ?? sign).join("").replace(/^\*/, "{*}");
const inMarkdown = (text) => text.replace(/[\\`*[\]|~$<]/g, "\\$&");
// no spreadsheet takes text for a formula
const inCsv = (text) => `"${(/^[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text).replaceAll('"', '""')}"`;

// the leaderboard as it is shown: header, and rows of texts and metric cells
function grid() {
  const groups = visible();
  const own = keys().map((key) => [shortKey(key), (group) => text(group.overrides[key])]);
  const cells = state.columns.map((name) => metricCells(groups, name));
  return {
    header: ["Model", ...own.map(([title]) => title), ...state.columns.map((name) => metric(name).short + ARROWS[metric(name).direction + 1].replace("\u00a0", " "))],
    texts: own.length + 1,
    rows: groups.map((group) => [group.rest, ...own.map(([, value]) => value(group)), ...cells.map((column) => ({ group, ...column.get(group) }))]),
  };
}

const FORMATS = {
  Markdown: ({ header, texts, rows }) => {
    const cell = (one) => (typeof one === "string" ? inMarkdown(one)
      : `${{ best: "**", second: "<u>" }[one.place] ?? ""}${one.text}${{ best: "**", second: "</u>" }[one.place] ?? ""}${one.stars.replaceAll("*", "\\*")}${one.deviation ? ` ${one.deviation}` : ""}`);
    const line = (parts) => `| ${parts.join(" | ")} |`;
    return [line(header.map(inMarkdown)), line(header.map((_, at) => (at < texts ? "---" : "---:"))), ...rows.map((row) => line(row.map(cell)))].join("\n");
  },
  LaTeX: ({ header, texts, rows }) => {
    const mark = { best: "\\mathbf", second: "\\underline", "": "" };
    const cell = (one) => (typeof one === "string" ? tex(one) : one.text === "–" ? "--"
      : `$${mark[one.place]}{${one.text}}${one.stars ? `^{${one.stars}}` : ""}${one.deviation ? ` ${one.deviation.replace("±", "\\pm")}` : ""}$`);
    const line = (parts) => `${parts.join(" & ")} \\\\`;
    return ["% \\usepackage{booktabs}", "{\\small\\setlength{\\tabcolsep}{4pt}", `\\begin{tabular}{${"l".repeat(texts)}${"r".repeat(header.length - texts)}}`, "\\toprule", line(header.map(tex)),
      "\\midrule", ...rows.map((row) => line(row.map(cell))), "\\bottomrule", "\\end{tabular}}"].join("\n");
  },
  CSV: ({ texts, rows }) => {
    const names = state.columns.flatMap((name) => [name, `${name}_uncertainty`]);
    const header = ["model", ...keys(), ...names];
    const numbers = ({ group }, name) => (group.values[name] ?? [null, null]).slice(0, 2).map((value) => value ?? "");
    const lines = rows.map((row) => [...row.slice(0, texts).map(inCsv), ...row.slice(texts).flatMap((one, at) => numbers(one, state.columns[at]))]);
    return [header.map(inCsv), ...lines].map((line) => line.join()).join("\n");
  },
};

async function copy(format) {
  const content = FORMATS[format](grid());
  try {
    await navigator.clipboard.writeText(content);
  } catch { // where the browser allows it to no file
    const area = Object.assign(document.createElement("textarea"), { value: content });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  $("copied").textContent = `Copied as ${format}.`;
}
