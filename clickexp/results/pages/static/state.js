"use strict";
// The page's data is in `D` (see page.py); groups are runs that differ in their seed only, and are the rows.
let D;
const $ = (id) => document.getElementById(id);
const ALL = "all";
const FIRST = 8; // rows that are drawn at first: as many as there are colours
const MANY = 6; // values of a hyperparameter that each get a tick
const FEW = 10; // documents from which a click rate means little
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
  hidden: new Set(), // groups that are drawn and hidden by the legend
  compact: 0, // what the leaderboard leaves out to fit: settings, then costs
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

// a count; what has an uncertainty comes as text
const shown = (value) => (known(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : "–");

function seconds(value) {
  if (!known(value)) return "–";
  return value >= 100 ? shown(value) : value.toPrecision(3);
}

// with more decimals where three would pass a limit of the stars
function pText(p) {
  if (p < 0.001) return "p < 0.001";
  let decimals = 3;
  while ([0.01, D.significant].some((limit) => (Number(p.toFixed(decimals)) < limit) !== (p < limit))) decimals += 1;
  return `p = ${p.toFixed(decimals)}`;
}
const shortKey = (key) => {
  const last = (name) => name.replace(/\._target_$/, "").split("@").pop().split(".").pop();
  return D.keys.filter((other) => last(other) === last(key)).length > 1 ? key : last(key);
};
// losses of several kinds say nothing about each other
const isComparable = (name) => name.split("/").pop() !== "loss" || !comparisons().some((one) => one.mixesLosses);
const metric = (name) => {
  const one = D.metrics[name] ?? { name, short: name, axis: name, direction: 0 };
  return isComparable(name) ? one : { ...one, direction: 0 };
};
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
    const searched = [group.name, own.tower, group.comparison.name, ...D.keys.map((key) => `${key}=${own[key]}`)].join(" ").toLowerCase();
    return words.every((word) => searched.includes(word));
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
const isShown = (group) => state.slots.has(group) && !state.hidden.has(group);
const drawn = () => visible().filter((group) => state.slots.has(group));

function draw(groups) {
  state.hidden.clear();
  state.slots = new Map(groups.map((group, slot) => [group, slot]));
}

function toggle(group) {
  if (state.hidden.delete(group)) return;
  if (state.slots.delete(group)) return;
  const taken = new Set(state.slots.values());
  let slot = 0;
  while (taken.has(slot)) slot += 1;
  state.slots.set(group, slot);
}
