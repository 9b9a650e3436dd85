// The data: gzip of a length, JSON of that length, and columns whose bytes lie in planes.

const COLUMN_KINDS = { u1: Uint8Array, i4: Int32Array, f4: Float32Array };

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function joinPlanes(bytes, offset, count, width) {
  const joined = new Uint8Array(count * width);
  for (let plane = 0; plane < width; plane++) {
    const from = offset + plane * count;
    for (let i = 0, to = plane; i < count; i++, to += width) joined[to] = bytes[from + i];
  }
  return joined.buffer;
}

async function readPayload(element) {
  const packed = bytesOfBase64(element.textContent.trim());
  element.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let offset = 4 + length;
  const columns = {};
  for (const [name, kind, count] of data.columns) {
    const width = COLUMN_KINDS[kind].BYTES_PER_ELEMENT;
    columns[name] = new COLUMN_KINDS[kind](joinPlanes(bytes, offset, count, width));
    offset += count * width;
  }
  data.columns = columns;
  return data;
}

// One completion by its number, with what the list and the reader ask of it.
function completionsOf(data) {
  const { completions, columns, files } = data;
  return completions.start.map((start, index) => {
    const length = completions.length[index];
    const corrections = [];
    let doubt = 0;
    for (let t = 0; t < length; t++) {
      if (columns.corrected[start + t]) corrections.push(t);
      doubt -= columns.teacher_logprobs[start + t];
    }
    const each = { index, start, length, corrections, doubt: length ? doubt / length : 0 };
    for (const key of ["row", "prompt", "prompt_key", "sample", "finish", "version", "radius", "seed", "correct"]) {
      each[key] = completions[key][index];
    }
    const file = files[completions.file[index]];
    return Object.assign(each, { file: file.name, method: file.method, behavior: file.behavior, step: file.step });
  });
}
