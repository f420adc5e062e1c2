// Tokens as they are stored: a list for each field instead of an object for each token, and the alternatives in binary arrays. A
// token with 20 alternatives then takes 240 to 350 bytes of JSON, and 750 as an object. Nothing is lost: numbers that 32 bits do
// not represent exactly take 64, and a token with other fields is kept as it is. Documents contain this form, so it cannot change.
const fields = new Set(["id", "text", "logprob", "top", "joins", "rank"]);
const isId = (id) => Number.isInteger(id) && id >= 0 && id < 2 ** 32;
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isAlternative = ({ id, logprob, rank }) => isId(id) && isNumber(logprob) && (rank === undefined || isId(rank));

// fits reports whether the lists can hold a token.
function fits(token) {
  for (const name in token) if (!fields.has(name)) return false;
  return (token.id === null || isId(token.id)) && (token.text === null || typeof token.text === "string")
    && (token.logprob === null || isNumber(token.logprob)) && Array.isArray(token.top) && token.top.every(isAlternative);
}

// floats returns numbers in the smallest exact form. NaN stands for null.
function floats(values) {
  return values.every((value) => Number.isNaN(value) || Math.fround(value) === value) ? Float32Array.from(values) : Float64Array.from(values);
}

// packTokens returns tokens as {ids, text, logprobs, counts, topIds, topLogprobs, …}. What few tokens have is in lists of
// [number of the token, value]. The rank of an alternative is kept where it is not its place.
export function packTokens(tokens) {
  const packed = { ids: [], text: [], counts: [], joins: [], ranks: [], ranked: [], topRanks: [], other: [] };
  const [logprobs, topIds, topLogprobs] = [[], [], []];
  tokens.forEach((token, i) => {
    const isOther = !fits(token);
    if (isOther) packed.other.push([i, token]);
    const { id, text, logprob, top, joins, rank } = isOther ? { id: null, text: null, logprob: null, top: [] } : token;
    packed.ids.push(id);
    packed.text.push(text);
    packed.counts.push(top.length);
    logprobs.push(logprob ?? NaN);
    if (joins !== undefined) packed.joins.push([i, joins]);
    if (rank !== undefined) packed.ranks.push([i, rank]);
    const isRanked = top.some((alternative) => alternative.rank !== undefined);
    if (isRanked) packed.ranked.push(i);
    top.forEach((alternative, place) => {
      if (isRanked && alternative.rank !== place + 1) packed.topRanks.push([topIds.length, alternative.rank ?? null]);
      topIds.push(alternative.id);
      topLogprobs.push(alternative.logprob);
    });
  });
  for (const name of ["joins", "ranks", "ranked", "topRanks", "other"]) if (!packed[name].length) delete packed[name];
  return { ...packed, logprobs: floats(logprobs), topIds: Uint32Array.from(topIds), topLogprobs: floats(topLogprobs) };
}

export function unpackTokens({ ids, text, counts, logprobs, topIds, topLogprobs, ...rare }) {
  const [joins, ranks, topRanks, other] = ["joins", "ranks", "topRanks", "other"].map((name) => new Map(rare[name]));
  const ranked = new Set(rare.ranked);
  let at = 0;
  return ids.map((id, i) => {
    const top = [];
    for (let place = 0; place < counts[i]; place++, at++) {
      const rank = topRanks.has(at) ? topRanks.get(at) : place + 1;
      top.push(ranked.has(i) && rank !== null ? { id: topIds[at], logprob: topLogprobs[at], rank } : { id: topIds[at], logprob: topLogprobs[at] });
    }
    if (other.has(i)) return other.get(i);
    const token = { id, text: text[i], logprob: Number.isNaN(logprobs[i]) ? null : logprobs[i], top };
    if (joins.has(i)) token.joins = joins.get(i);
    if (ranks.has(i)) token.rank = ranks.get(i);
    return token;
  });
}

// The binary arrays in JSON, little-endian as on every machine that has browsers: {f32, f64 or u32: base64}.
const kinds = [["f32", Float32Array], ["f64", Float64Array], ["u32", Uint32Array]];

function arrayAsJSON(array) {
  const bytes = new Uint8Array(array.buffer);
  let binary = "";
  for (let i = 0; i < bytes.length; i += 0x8000) binary += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return { [kinds.find(([, type]) => array instanceof type)[0]]: btoa(binary) };
}

function arrayOfJSON(value) {
  const [name, Type] = kinds.find(([kind]) => kind in value);
  const binary = atob(value[name]);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Type(bytes.buffer);
}

const arrays = ["logprobs", "topIds", "topLogprobs"];
const withArrays = (packed, convert) => ({ ...packed, ...Object.fromEntries(arrays.map((name) => [name, convert(packed[name])])) });

// asJSON and ofJSON convert the binary arrays of packed tokens.
export const asJSON = (packed) => withArrays(packed, arrayAsJSON);
export const ofJSON = (saved) => withArrays(saved, arrayOfJSON);

const encoder = new TextEncoder();
export const bytesOf = (value) => encoder.encode(JSON.stringify(value)).length;

// bytesOfPacked returns the size of packed tokens in JSON, without converting the arrays.
export function bytesOfPacked(packed) {
  return arrays.reduce((sum, name) => sum + 4 * Math.ceil(packed[name].byteLength / 3), bytesOf({ ...packed, ...Object.fromEntries(arrays.map((name) => [name, { f32: "" }])) }));
}
