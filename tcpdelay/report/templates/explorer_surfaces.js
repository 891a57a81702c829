// Surfaces as they come in the page, and the prediction between their points: what tcpdelay.explorer.interpolation does.

const MISSING = 65535;
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
    this.stored = Object.fromEntries(
      Object.entries(record.surfaces).map(([name, surface]) => [name, decoded(surface)]));
  }

  // What decides at a place, an array of bitrate, round-trip time and loss.
  verdict(place) {
    const corners = surrounding(this.axes, place);
    const headroom = Math.exp(mixed(this.stored.headroom, corners));
    const endless = headroom <= 1;
    const quantile = this.delay(corners, headroom, 1 + this.target);
    const late = endless ? 1 : Math.exp(mixed(this.stored.late_fraction, corners));
    let verdict = "unsettled";
    if (endless) verdict = "endless";
    else if (Number.isNaN(quantile) || Number.isNaN(late)) verdict = "unknown";
    else if (quantile <= this.limit && late <= this.lateAllowed) verdict = "works";
    else if (quantile > this.limit && late > this.lateAllowed) verdict = "late";
    return { corners, headroom, endless, quantile, late, verdict };
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
