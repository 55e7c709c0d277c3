/** What a file is that is not what its name or place says: the first bytes of what people have by mistake. */

export interface ForeignFile {
  /** With its article, e.g. `a Git LFS pointer, not the file itself`. */
  readonly what: string;
  readonly remedy: string;
}

interface Kind extends ForeignFile {
  readonly matches: (text: string) => boolean;
}

const KINDS: Record<string, Kind> = {
  lfs: {
    what: 'a Git LFS pointer, not the file itself',
    remedy: 'fetch it with `git lfs pull`, or name the repository as hf:org/name',
    matches: (text) => text.startsWith('version https://git-lfs'),
  },
  html: {
    what: 'an HTML page, not the file itself',
    remedy: 'a login or error page was saved; download the file again',
    matches: (text) => /^\s*<(?:!doctype html|html|head)\b/i.test(text),
  },
  xml: {
    what: 'an XML document, not the file itself',
    remedy: 'the error of a server was saved; download the file again',
    matches: (text) => text.startsWith('<?xml'),
  },
  gguf: {
    what: 'a GGUF file',
    remedy: 'convert it first: cflow-convert MODEL.gguf MODEL.cflow',
    matches: (text) => text.startsWith('GGUF'),
  },
  zip: {
    what: 'a ZIP archive, as PyTorch writes',
    remedy: 'save the checkpoint as safetensors: model.save_pretrained(DIRECTORY)',
    matches: (text) => text.startsWith('PK\x03\x04'),
  },
  gzip: {
    what: 'a gzip archive',
    remedy: 'unpack it first',
    matches: (text) => text.startsWith('\x1f\x8b'),
  },
  cflow: {
    what: 'a .cflow or .vflow',
    remedy: 'rename it to .cflow or .vflow',
    matches: (text) => /^[CV]FLOW/.test(text),
  },
  safetensors: {
    what: 'a safetensors file',
    remedy: 'convert its directory, which has config.json too: cflow-convert DIRECTORY MODEL.cflow',
    matches: (text) => /^\{\s*"/.test(text.slice(8)) && text.slice(5, 8) === '\0\0\0',
  },
};

/** What the first bytes (64 are enough) say; undefined for what is none of these, or is `expected`. */
export function foreignFile(bytes: Uint8Array, expected?: string): ForeignFile | undefined {
  const text = String.fromCharCode(...bytes.subarray(0, 64));
  const [name, kind] = Object.entries(KINDS).find(([, { matches }]) => matches(text)) ?? [];
  return name === expected ? undefined : kind;
}
