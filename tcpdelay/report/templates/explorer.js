// The controls, the link that holds their state, and the numbers.

const data = JSON.parse(document.getElementById("data").textContent);
const records = new Map(data.applications.map((record) => [record.name, record]));
const speech = Uint8Array.from(atob(data.speech), (character) => character.charCodeAt(0));
const opened = {};
const QUANTITIES = ["rtt", "loss", "bitrate", "playout"];
const PLAYOUTS = [0.02, 2];
const UNITS = {
  rtt: { us: 1e-6, ms: 1e-3, s: 1 },
  playout: { us: 1e-6, ms: 1e-3, s: 1 },
  loss: { "%": 0.01, "": 1 },
  bitrate: { "bit/s": 1, "kbit/s": 1e3, "Mbit/s": 1e6 },
};
const SHOWN = { rtt: formatTime, loss: formatFraction, bitrate: formatRate, playout: formatTime };

const element = (name) => document.getElementById(name);
const state = { app: data.applications[0].name, ...data.start, bitrate: data.applications[0].bitrateOfApp, playout: 0 };
const SPOKEN_AFTER = 300;
const SAME_EDGE = 1.015;  // Ratio of the two sides of one edge, which a search brings together to a hundredth.
let steps = {}, box = null, speaking = 0;

function surfaces() {
  return (opened[state.app] ??= new Surfaces(records.get(state.app), data.probabilities));
}

// Round values from one end of a range to the other, about one or two in a hundred apart.
function roundSteps(low, high, extra = []) {
  const found = new Set([low, high, ...extra]);
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
    for (let hundredth = 100; hundredth < 1000; hundredth += hundredth < 200 ? 5 : hundredth < 500 ? 10 : 20) {
      const value = Number(`${hundredth}e${decade - 2}`);
      if (value > low && value < high) found.add(value);
    }
  }
  return [...found].sort((one, other) => one - other);
}

function nearest(values, value) {
  const distance = (other) => Math.abs(Math.log(other / value));
  return values.reduce((best, other, i) => (distance(other) < distance(values[best]) ? i : best), 0);
}

function number(value) {
  return String(Number(value.toPrecision(6)));
}

function typed(name, value) {
  if (name === "rtt" || name === "playout") return `${number(value * 1e3)}ms`;
  if (name === "loss") return `${number(value * 100)}%`;
  return `${number(value / 1e3)}kbit/s`;
}

function read(name, text) {
  const found = /^([0-9.]+(?:e-?[0-9]+)?)([a-zA-Z/%]*)$/.exec(text.replace("%25", "%"));
  const scale = found && UNITS[name][found[2]];
  return scale === undefined || scale === null ? NaN : Number((Number(found[1]) * scale).toPrecision(12));
}

function readLink() {
  const link = Object.fromEntries(location.hash.slice(1).split("&").map((pair) => pair.split("=")));
  if (records.has(link.app)) state.app = link.app;
  const [bitrates, rtts, losses] = surfaces().axes;
  state.bitrate = records.get(state.app).bitrateOfApp;
  state.playout = records.get(state.app).limit;
  for (const [name, values] of [["rtt", rtts], ["loss", losses], ["bitrate", bitrates], ["playout", PLAYOUTS]]) {
    const value = read(name, link[name] ?? "");
    if (!Number.isNaN(value)) state[name] = value;
    state[name] = Math.min(Math.max(state[name], values[0]), values[values.length - 1]);
  }
}

function writeLink() {
  const given = QUANTITIES.filter((name) => name !== "playout" || records.get(state.app).spoken);
  const link = given.map((name) => `${name}=${typed(name, state[name])}`);
  history.replaceState(null, "", `#app=${state.app}&${link.join("&")}`);
}

function setSliders() {
  const record = records.get(state.app);
  const [bitrates, rtts, losses] = surfaces().axes;
  steps = {
    rtt: roundSteps(rtts[0], rtts[rtts.length - 1]),
    loss: roundSteps(losses[0], losses[losses.length - 1]),
    bitrate: roundSteps(bitrates[0], bitrates[bitrates.length - 1], [record.bitrateOfApp]),
    playout: roundSteps(...PLAYOUTS, [record.limit]),
  };
  for (const name of QUANTITIES) {
    element(name).max = steps[name].length - 1;
    element(name).value = nearest(steps[name], state[name]);
  }
  element("app").value = state.app;
}

// The packets grow up to one segment; beyond, they become more frequent.
function packets() {
  const { packetSize, interval, mss } = records.get(state.app);
  const size = (state.bitrate * interval) / 8, largest = Math.max(mss, packetSize);
  return size > largest ? [largest, (8 * largest) / state.bitrate] : [Math.max(1, Math.round(size)), interval];
}

function headline({ verdict, quantile }, { limit }) {
  return {
    works: () => `Works, with ${formatTime(limit - quantile)} to spare`,
    late: () => `Does not work: ${formatTime(quantile - limit)} too late`,
    endless: () => "Does not work: TCP cannot carry this flow",
    unsettled: () => "Uncertain: too close to the edge to interpolate",
    unknown: () => "Uncertain: TCP can hardly carry this flow",
  }[verdict]();
}

// The exact edge is known at the points of the grid alone, which are searched with the chain.
function edgeInWords({ low, high }) {
  if (high === Infinity) return low > 0 ? `${formatFraction(low)} or more` : "not known here";
  if (low === 0) return `less than ${formatFraction(high)}`;
  return high / low < SAME_EDGE ? formatFraction(low) : `between ${formatFraction(low)} and ${formatFraction(high)}`;
}

function sentence({ verdict, quantile, late, edge }, { limit, quantile: share }) {
  if (verdict === "unsettled") {
    return `At this bitrate and round-trip time it works up to a loss that is ${edgeInWords(edge)}. ` +
      "The command below has the exact prediction here.";
  }
  if (verdict === "endless") return "Packets pile up in the send buffer for as long as the flow sends.";
  if (verdict === "unknown") return "Nothing was computed in advance so close to the largest rate that TCP can carry. " +
      "The command below has the exact prediction here.";
  return `${formatFraction(share)} of the packets arrive within ${formatTime(quantile)}; the limit is ` +
    `${formatTime(limit)}. ${formatFraction(late)} of the packets come later than the limit.`;
}

function show(name, value, format) {
  const cell = element(name);
  cell.textContent = Number.isNaN(value) ? "not computed" : format(value);
  cell.dataset.value = value;
}

function showNumbers(prediction, record) {
  const at = (probability) => prediction.quantiles[data.probabilities.indexOf(probability)];
  show("mean", prediction.mean, (mean) => (mean === Infinity ? "grows for ever" : formatTime(mean)));
  for (const probability of [0.5, 0.9, 0.95, 0.99, 0.999]) show(`p${number(100 * probability)}`, at(probability), formatTime);
  show("late", prediction.late, formatFraction);
  element("edge").textContent = edgeInWords(prediction.edge);
  [element("edge").dataset.low, element("edge").dataset.high] = [prediction.edge.low, prediction.edge.high];
  show("headroom", prediction.headroom, (headroom) => String(significant(headroom)));
  // A delay that grows for ever has no relative error.
  show("expected-error", prediction.endless ? NaN : prediction.expectedError, (error) => formatFraction(Number(error.toPrecision(2))));
  element("mos-row").hidden = !("mos" in record.surfaces);
  show("mos", prediction.mos, (mos) => mos.toFixed(2));
  element("late-label").textContent = `later than ${formatTime(record.limit)}`;
}

function update() {
  const record = records.get(state.app), prediction = surfaces().prediction([state.bitrate, state.rtt, state.loss]);
  const { verdict } = prediction, shown = headline(prediction, record);
  element("verdict").className = { works: "works", late: "fails", endless: "fails" }[verdict] ?? "uncertain";
  element("verdict").dataset.verdict = verdict;
  element("title").textContent = record.title;
  element("headline").textContent = shown;
  element("sentence").textContent = sentence(prediction, record);
  for (const name of QUANTITIES) {
    element(`${name}-value`).textContent = SHOWN[name](state[name]);
    element(name).setAttribute("aria-valuetext", SHOWN[name](state[name]));
  }
  const at = (path) => ["rtt", "loss"].every((name) => nearest(steps[name], path[name]) === nearest(steps[name], state[name]));
  element("path").value = data.paths.find(at)?.name ?? "";
  const [size, interval] = packets();
  const outside = size < data.packetSizes[0] || size > data.packetSizes[1]
    || interval < data.intervals[0] || interval > data.intervals[1];
  element("packets").textContent = `${size}\u00a0B every ${formatTime(interval)}` +
    (outside ? "; outside the range in which the chain has been checked" : "");
  showNumbers(prediction, record);
  showHearing(prediction, interval);
  const own = Math.abs(state.bitrate / record.bitrateOfApp - 1) < 1e-6;
  const bitrate = own ? "" : ` --bitrate ${typed("bitrate", state.bitrate)}`;
  element("command").textContent =
    `tcpdelay predict --rtt ${typed("rtt", state.rtt)} --loss ${typed("loss", state.loss)} --app ${state.app}${bitrate}`;
  element("copied").textContent = "";
  element("accuracy").textContent = record.accuracy;
  element("basis").textContent = `${record.title}: ${record.basis}.`;
  drawSurvival(element("survival"), prediction, surfaces());
  box = drawRegion(element("region"), surfaces(), state);
  // Said once the slider rests, not at each step.
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    element("spoken").textContent = `${shown}. ${element("sentence").textContent}`;
  }, SPOKEN_AFTER);
}

function choosePlace(event) {
  const rectangle = element("region").getBoundingClientRect(), scale = box.width / rectangle.width;
  const rtt = box.fromX((event.clientX - rectangle.left) * scale), loss = box.fromY((event.clientY - rectangle.top) * scale);
  for (const [name, value] of [["rtt", rtt], ["loss", loss]]) state[name] = steps[name][nearest(steps[name], value)];
  setSliders();
  update();
  writeLink();
}

async function copyCommand() {
  const text = element("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
    element("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(element("command"));
    element("copied").textContent = "Selected; copy it.";
  }
}

function restart() {
  readLink();
  setSliders();
  update();
}

for (const name of QUANTITIES) {
  element(name).addEventListener("input", () => {
    state[name] = steps[name][element(name).value];
    update();
  });
  element(name).addEventListener("change", writeLink);
}
element("app").addEventListener("change", () => {
  state.app = element("app").value;
  state.bitrate = records.get(state.app).bitrateOfApp;
  state.playout = records.get(state.app).limit;
  setSliders();
  update();
  writeLink();
});
element("path").addEventListener("change", () => {
  const path = data.paths.find(({ name }) => name === element("path").value);
  if (!path) return;
  [state.rtt, state.loss] = [path.rtt, path.loss];
  setSliders();
  update();
  writeLink();
});
element("region").addEventListener("click", choosePlace);
element("copy").addEventListener("click", copyCommand);
element("hear").addEventListener("click", playAsHeard);
element("hear-original").addEventListener("click", playAsSent);
addEventListener("hashchange", restart);
addEventListener("resize", update);
restart();
