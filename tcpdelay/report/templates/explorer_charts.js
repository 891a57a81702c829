// Quantities in words, and the two charts.

function significant(value) {
  return Number(value.toPrecision(3));
}

function formatTime(seconds) {
  if (seconds === Infinity) return "never";
  for (const [unit, scale] of [["µs", 1e-6], ["ms", 1e-3]]) {
    const value = significant(seconds / scale);
    if (value < 1000) return `${value}\u00a0${unit}`;
  }
  return `${significant(seconds)}\u00a0s`;
}

function formatFraction(fraction) {
  if (fraction > 0 && fraction < 1e-5) return "<\u00a00.001\u00a0%";
  if (fraction >= 0.9995 && fraction < 1) return ">\u00a099.9\u00a0%";
  return `${significant(100 * fraction)}\u00a0%`;
}

function formatRate(rate) {
  const [unit, scale] = significant(rate / 1e3) < 1000 ? ["kbit/s", 1e3] : ["Mbit/s", 1e6];
  return `${significant(rate / scale)}\u00a0${unit}`;
}

const MARGIN = { left: 56, right: 14, top: 26, bottom: 44 };

function frame(svg, [lowX, highX], [lowY, highY]) {
  const width = Math.max(svg.parentElement.clientWidth, 240), height = Math.round(Math.min(0.68 * width, 280));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const place = (value, low, high, start, end) =>
    start + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (end - start);
  return {
    left: MARGIN.left, right, top: MARGIN.top, bottom, width, height,
    x: (value) => place(value, lowX, highX, MARGIN.left, right),
    y: (value) => place(value, lowY, highY, bottom, MARGIN.top),
    fromX: (x) => lowX * (highX / lowX) ** ((x - MARGIN.left) / (right - MARGIN.left)),
    fromY: (y) => lowY * (highY / lowY) ** ((bottom - y) / (bottom - MARGIN.top)),
  };
}

const TICK_WIDTH = 58, WHOLE_DECADES = 0;

// 1, 2 and 5 times powers of ten, or fewer where those would not fit.
function ticks(low, high, most) {
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++) {
      for (const digit of digits) {
        const tick = Number(`${digit}e${decade}`);
        if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
      }
    }
    if (found.length <= most || digits.length === 1) return found;
  }
}

function axes(box, xTicks, yTicks, formatX, formatY, nameX, nameY) {
  const marks = xTicks.map((tick) => `<path class="axis" d="M${box.x(tick)} ${box.bottom}v5"/>` +
    `<text x="${box.x(tick)}" y="${box.bottom + 19}" text-anchor="middle">${formatX(tick)}</text>`);
  for (const tick of yTicks) {
    marks.push(`<path class="axis" d="M${box.left} ${box.y(tick)}h-5"/>` +
      `<text x="${box.left - 8}" y="${box.y(tick) + 4}" text-anchor="end">${formatY(tick)}</text>`);
  }
  marks.push(`<path class="axis" d="M${box.left} ${box.top}V${box.bottom}H${box.right}"/>`,
    `<text x="${(box.left + box.right) / 2}" y="${box.height - 4}" text-anchor="middle">${nameX}</text>`,
    `<text x="4" y="14">${nameY}</text>`);
  return marks.join("");
}

const SMALLEST_SHARE = 0.001, MOST_DECADES = 3;

function drawSurvival(svg, prediction, surfaces) {
  const { quantiles } = prediction, last = quantiles[quantiles.length - 1];
  const known = Number.isFinite(quantiles[0]);
  const low = (known ? Math.min(quantiles[0], surfaces.limit) : surfaces.limit / 10) / 1.3;
  const high = Math.min(Math.max(known ? last : 0, surfaces.limit) * 1.3, low * 10 ** MOST_DECADES);
  const box = frame(svg, [low, high], [SMALLEST_SHARE, 1]);
  const xTicks = ticks(low, high, (box.right - box.left) / TICK_WIDTH);
  const yTicks = ticks(SMALLEST_SHARE, 1, WHOLE_DECADES);
  const parts = [axes(box, xTicks, yTicks, formatTime, formatFraction, "delay",
    "share of the packets that come later")];
  const limit = box.x(surfaces.limit), anchor = limit > (box.left + box.right) / 2 ? "end" : "start";
  parts.push(`<path class="limit" d="M${limit} ${box.top}V${box.bottom}"/>`,
    `<text x="${limit + (anchor === "end" ? -6 : 6)}" y="${box.top + 14}" text-anchor="${anchor}">` +
    `limit ${formatTime(surfaces.limit)}</text>`);
  if (known) {
    const points = quantiles.map((delay, i) =>
      `${box.x(Math.min(delay, high))} ${box.y(Math.max(1 - surfaces.probabilities[i], SMALLEST_SHARE))}`);
    const target = Math.min(prediction.quantile, high);
    parts.push(`<path class="curve" d="M${box.x(Math.min(quantiles[0], high))} ${box.y(1)}L${points.join("L")}"/>`,
      `<circle class="here" cx="${box.x(target)}" cy="${box.y(surfaces.lateAllowed)}" r="5"/>`);
  } else {
    const words = prediction.endless ? "the delay grows for ever" : "not computed here";
    parts.push(`<text x="${(box.left + box.right) / 2}" y="${(box.top + box.bottom) / 2}" text-anchor="middle">${words}</text>`);
  }
  svg.querySelector("g").innerHTML = parts.join("");
}

const COLUMNS = 110, ROWS = 80;
const NAMES = { works: "works", late: "too late", unsettled: "", endless: "TCP cannot carry it", unknown: "" };
const CHARACTER = 7.5;

// Runs of one verdict along each row of the map, with whole pixels as edges so that no seams show.
function verdictRuns(box, surfaces, bitrate) {
  const runs = {};
  const edge = (column) => Math.round(box.left + ((box.right - box.left) * column) / COLUMNS);
  const level = (row) => Math.round(box.top + ((box.bottom - box.top) * row) / ROWS);
  for (let row = 0; row < ROWS; row++) {
    const top = level(row), bottom = level(row + 1), loss = box.fromY((top + bottom) / 2);
    let start = 0, previous = null;
    for (let column = 0; column <= COLUMNS; column++) {
      const rtt = box.fromX((edge(column) + edge(column + 1)) / 2);
      const verdict = column < COLUMNS ? surfaces.verdict([bitrate, rtt, loss]).verdict : null;
      if (verdict === previous) continue;
      if (previous !== null) (runs[previous] ??= []).push({ left: edge(start), right: edge(column), top, bottom });
      [start, previous] = [column, verdict];
    }
  }
  return runs;
}

// The middle one of the rows in which a region is about as wide as anywhere, if its name fits there.
function nameOf(verdict, runs) {
  const widest = Math.max(...runs.map(({ left, right }) => right - left));
  if (!NAMES[verdict] || NAMES[verdict].length * CHARACTER > widest) return "";
  const wide = runs.filter(({ left, right }) => right - left >= 0.8 * widest);
  const { left, right, bottom } = wide[Math.floor(wide.length / 2)];
  return `<text x="${(left + right) / 2}" y="${Math.max(bottom + 4, MARGIN.top + 16)}" text-anchor="middle">${NAMES[verdict]}</text>`;
}

function drawRegion(svg, surfaces, state) {
  const [, rtts, losses] = surfaces.axes;
  const box = frame(svg, [rtts[0], rtts[rtts.length - 1]], [losses[0], losses[losses.length - 1]]);
  const runs = Object.entries(verdictRuns(box, surfaces, state.bitrate));
  const parts = runs.map(([verdict, drawn]) => `<path class="region ${verdict}" d="` + drawn.map(
    ({ left, right, top, bottom }) => `M${left} ${top}H${right}V${bottom}H${left}z`).join("") + '"/>');
  const xTicks = ticks(rtts[0], rtts[rtts.length - 1], (box.right - box.left) / TICK_WIDTH);
  const yTicks = ticks(losses[0], losses[losses.length - 1], WHOLE_DECADES);
  parts.push(axes(box, xTicks, yTicks, formatTime, formatFraction, "round-trip time", "loss"));
  parts.push(...runs.map(([verdict, drawn]) => nameOf(verdict, drawn)));
  const x = box.x(state.rtt), y = box.y(state.loss);
  parts.push(`<path class="cross" d="M${x} ${box.top}V${box.bottom}M${box.left} ${y}H${box.right}"/>`,
    `<circle class="here" cx="${x}" cy="${y}" r="6"/>`);
  svg.querySelector("g").innerHTML = parts.join("");
  return box;
}
