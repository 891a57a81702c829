// Surfaces as they come in the page, and the prediction between their points, as `interpolated` of the study does.

const MISSING = 65535, ON_POINT = 1e-9, FURTHER = 1;
const CORNERS = [0, 1, 2, 3, 4, 5, 6, 7].map((bits) => [bits >> 2, (bits >> 1) & 1, bits & 1]);

function decoded({ low, high, width, codes }) {
  const bytes = Uint8Array.from(atob(codes), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const values = new Float64Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) {
    const code = view.getUint16(2 * i, true);
    values[i] = code === MISSING ? NaN : low + (code / (MISSING - 1)) * (high - low);
  }
  return { values, width };
}

// The eight points of the grid around a place, and their weights.
function surrounding(axes, place) {
  const lower = [], shares = [];
  axes.forEach((axis, i) => {
    const value = Math.log(Math.min(Math.max(place[i], axis[0]), axis[axis.length - 1]));
    let k = 0;
    while (k < axis.length - 2 && Math.log(axis[k + 1]) <= value) k++;
    lower.push(k);
    shares.push((value - Math.log(axis[k])) / (Math.log(axis[k + 1]) - Math.log(axis[k])));
  });
  return CORNERS.map((steps) => ({
    cell: steps.reduce((cell, step, i) => cell * axes[i].length + lower[i] + step, 0),
    weight: steps.reduce((weight, step, i) => weight * (step ? shares[i] : 1 - shares[i]), 1),
  }));
}

// The numbers of the points of an axis around a value, and of further points on both sides; of a point its own alone.
function around(axis, value, further) {
  const above = axis.findIndex((point) => point >= value), end = axis.length - 1;
  const upper = above < 0 ? end : above, lower = Math.max(upper - 1, 0);
  const share = Math.log(value / axis[lower]) / Math.log(axis[upper] / axis[lower]);
  if (above <= 0 || share > 1 - ON_POINT) return [upper];
  if (share < ON_POINT) return [lower];
  const first = Math.max(lower - further, 0), last = Math.min(upper + further, end);
  return Array.from({ length: last - first + 1 }, (_, step) => first + step);
}

// The weighted mean over those points that are known; NaN where none is.
function mixed({ values, width }, corners, number = 0) {
  let sum = 0, weights = 0;
  for (const { cell, weight } of corners) {
    const value = values[cell * width + number];
    if (!Number.isNaN(value)) {
      sum += weight * value;
      weights += weight;
    }
  }
  return weights > 0 ? sum / weights : NaN;
}

class Surfaces {
  constructor(record, probabilities) {
    this.axes = [record.bitrate, record.rtt, record.loss];
    this.probabilities = probabilities;
    this.target = probabilities.indexOf(record.quantile);
    this.limit = record.limit;
    this.lateAllowed = 1 - record.quantile;
    this.edgeRtt = record.edgeRtt;
    // Where no loss fails, the upper side is null.
    this.edges = record.edges.map(([low, high]) => ({ low, high: high ?? Infinity }));
    this.stored = Object.fromEntries(
      Object.entries(record.surfaces).map(([name, surface]) => [name, decoded(surface)]));
  }

  // The range of the largest loss that works at a bitrate and a round-trip time: over the exact edges around.
  edge([bitrate, rtt]) {
    const times = around(this.edgeRtt, rtt, FURTHER), edges = around(this.axes[0], bitrate, 0).flatMap(
      (rate) => times.map((time) => this.edges[rate * this.edgeRtt.length + time]));
    return { low: Math.min(...edges.map(({ low }) => low)), high: Math.max(...edges.map(({ high }) => high)) };
  }

  // What decides at a place, an array of bitrate, round-trip time and loss.
  verdict(place) {
    const corners = surrounding(this.axes, place);
    const headroom = Math.exp(mixed(this.stored.headroom, corners));
    const endless = headroom <= 1;
    const quantile = this.delay(corners, headroom, 1 + this.target);
    const late = endless ? 1 : Math.exp(mixed(this.stored.late_fraction, corners));
    const edge = this.edge(place), loss = place[2];
    let verdict = "unsettled";
    if (Number.isNaN(quantile) || Number.isNaN(late)) verdict = "unknown";
    else if (quantile <= this.limit && late <= this.lateAllowed && loss <= edge.low) verdict = "works";
    else if (quantile > this.limit && late > this.lateAllowed && loss >= edge.high) verdict = endless ? "endless" : "late";
    return { corners, headroom, endless, quantile, late, edge, verdict };
  }

  // The mean (number 0) or a quantile; stored without what the nearness of the capacity multiplies it by.
  delay(corners, headroom, number) {
    return headroom <= 1 ? Infinity : Math.exp(mixed(this.stored.delays, corners, number)) / (1 - 1 / headroom);
  }

  prediction(place) {
    const found = this.verdict(place);
    const { corners, headroom, endless } = found;
    const mos = this.stored.mos ? mixed(this.stored.mos, corners) : NaN;
    return {
      ...found,
      mean: this.delay(corners, headroom, 0),
      quantiles: this.probabilities.map((_, i) => this.delay(corners, headroom, 1 + i)),
      mos: endless && this.stored.mos ? 1 : mos,
      expectedError: mixed(this.stored.expected_error, corners),
    };
  }
}
