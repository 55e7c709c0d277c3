/** Reads PNG files of 8-bit RGBA without interlacing, which is all that is drawn here. */
import { inflateSync } from 'node:zlib';

export interface Pixels {
  readonly width: number;
  readonly height: number;
  /** Red, green, blue, alpha. */
  readonly pixels: Uint8Array;
}

/** By the specification (W3C), filters included. */
export function decodePng(png: Buffer): Pixels {
  if (png.toString('latin1', 0, 8) !== '\x89PNG\r\n\x1a\n') throw new Error('no PNG');
  const [width, height] = [png.readUInt32BE(16), png.readUInt32BE(20)];
  if (png.toString('hex', 24, 29) !== '0806000000') throw new Error('not RGBA of 8 bits');
  const data: Buffer[] = [];
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) {
    const length = png.readUInt32BE(at);
    if (png.toString('latin1', at + 4, at + 8) === 'IDAT') data.push(png.subarray(at + 8, at + 8 + length));
  }
  const raw = inflateSync(Buffer.concat(data));
  const stride = 4 * width;
  const pixels = new Uint8Array(stride * height);
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (stride + 1)]!;
    for (let x = 0; x < stride; x++) {
      const left = x < 4 ? 0 : pixels[y * stride + x - 4]!;
      const up = y ? pixels[(y - 1) * stride + x]! : 0;
      const corner = x < 4 || !y ? 0 : pixels[(y - 1) * stride + x - 4]!;
      const predicted = [0, left, up, (left + up) >> 1, paeth(left, up, corner)][filter]!;
      pixels[y * stride + x] = raw[y * (stride + 1) + 1 + x]! + predicted;
    }
  }
  return { width, height, pixels };
}

function paeth(left: number, up: number, corner: number): number {
  const guess = left + up - corner;
  const [a, b, c] = [left, up, corner].map((value) => Math.abs(guess - value)) as [number, number, number];
  if (a <= b && a <= c) return left;
  return b <= c ? up : corner;
}
