/** Pictures of charts for what shows no SVG. */
import { CflowError } from '@cflow/format';

/** Pixels of a unit of the SVG: charts are read on dense screens. */
const ZOOM = 2;

/**
 * A PNG of an SVG. Texts need a font of the system.
 * @throws CflowError UNSUPPORTED where the library has no binary for the platform
 */
export async function svgToPng(svg: string): Promise<Uint8Array> {
  // A binary, loaded for this alone.
  const { Resvg } = await import('@resvg/resvg-js').catch((cause: unknown) => {
    throw new CflowError('UNSUPPORTED', 'pictures cannot be drawn on this platform', {
      field: '--png',
      remedy: 'use --svg',
      cause,
    });
  });
  return new Resvg(svg, { fitTo: { mode: 'zoom', value: ZOOM } }).render().asPng();
}
