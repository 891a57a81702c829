// A spoken sentence through the predicted delays: a packet that comes too late for the playout is silent.

const SAMPLE_RATE = 8000, SILENCE = 128, FADE = 16;
let playing = null;

// Random numbers from 0 to 1 that are the same each time (mulberry32), so that a place always sounds the same.
function randomNumbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// The delays of a number of packets, ascending: one for each of as many equal shares of the predicted distribution.
function predictedDelays(count, { quantiles }, probabilities) {
  const shares = [0, ...probabilities, 1];
  const delays = [quantiles[0], ...quantiles, quantiles[quantiles.length - 1]];
  return Array.from({ length: count }, (_, i) => {
    const share = (i + 0.5) / count, k = shares.findIndex((end) => end > share) - 1;
    return delays[k] + ((share - shares[k]) / (shares[k + 1] - shares[k])) * (delays[k + 1] - delays[k]);
  });
}

// The prediction says how many packets have which delay, not in which order. TCP hands all packets behind a lost one
// to the receiver at once: each waits an interval less than the one before. So do the delays that are put in order here.
function inStalls(ascending, interval) {
  const left = [...ascending], least = left[0], stalls = [];
  while (left.length) {
    const stall = [left.pop()];
    for (;;) {
      const next = stall[stall.length - 1] - interval, place = left.findIndex((delay) => delay >= next - interval / 2);
      if (next <= least + interval / 2 || place < 0) break;
      stall.push(...left.splice(place, 1));
    }
    stalls.push(stall);
  }
  const random = randomNumbers(1);
  for (let i = stalls.length - 1; i > 0; i--) {
    const other = Math.floor(random() * (i + 1));
    [stalls[i], stalls[other]] = [stalls[other], stalls[i]];
  }
  return stalls.flat();
}

// Whether each packet of the sentence is heard; null where there is no delay to play.
function heardPackets(prediction, interval, playout) {
  if (!Number.isFinite(prediction.quantiles[0])) return null;
  const count = Math.ceil(speech.length / (SAMPLE_RATE * interval));
  return inStalls(predictedDelays(count, prediction, data.probabilities), interval).map((delay) => delay <= playout);
}

function showHearing(prediction, interval) {
  element("hear-section").hidden = !records.get(state.app).spoken;
  if (!records.get(state.app).spoken) return;
  const heard = heardPackets(prediction, interval, state.playout), shown = element("hearing");
  element("hear").disabled = heard === null;
  if (heard === null) {
    shown.textContent = "There is no delay to play.";
    return;
  }
  const late = heard.filter((inTime) => !inTime).length;
  shown.dataset.late = late / heard.length;
  shown.textContent = `${late} of ${heard.length} packets (${formatFraction(late / heard.length)}) come too late and are silent.`;
}

function stopPlaying() {
  playing?.stop();
  playing = null;
}

function play(heard, interval) {
  stopPlaying();
  const context = new AudioContext(), buffer = context.createBuffer(1, speech.length, SAMPLE_RATE);
  const samples = buffer.getChannelData(0), length = SAMPLE_RATE * interval;
  let level = 1;
  for (let i = 0; i < samples.length; i++) {
    // A loudness that changes within two milliseconds does not click.
    level += Math.sign(Number(heard[Math.floor(i / length)]) - level) / FADE;
    samples[i] = (level * (speech[i] - SILENCE)) / SILENCE;
  }
  playing = context.createBufferSource();
  playing.buffer = buffer;
  playing.connect(context.destination);
  playing.addEventListener("ended", () => context.close());
  playing.start();
}

function playAsSent() {
  play([true], speech.length / SAMPLE_RATE);
}

function playAsHeard() {
  const interval = packets()[1], prediction = surfaces().prediction([state.bitrate, state.rtt, state.loss]);
  play(heardPackets(prediction, interval, state.playout), interval);
}
