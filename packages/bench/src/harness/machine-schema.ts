/** What a figure belongs to: the machine, its limits as measured in the same run, and the code. */
import { z } from 'zod';

const rate = z.number().positive();
const spreadSchema = z.strictObject({ median: rate, min: rate, max: rate });

export const machineSchema = z.strictObject({
  cpu: z.string(),
  /** What the kernels use; null without the addon. */
  isa: z.string().nullable(),
  cores: z.strictObject({
    online: z.int().min(1),
    allowed: z.int().min(1),
    /** Where `allowed` comes from. */
    why: z.string(),
    /** Load average of the last minute, before anything ran: what else the machine did. */
    load: z.number().min(0),
  }),
  /** Bytes that this process may use: of the machine, or of its cgroup. */
  memoryLimit: z.int().positive(),
  /** Plain reads by so many threads, 10^9 bytes a second; null without the addon. */
  readBandwidth: spreadSchema.extend({ threads: z.int().min(1) }).nullable(),
  /** Of the directory for temporary files, 10^9 bytes a second, past the page cache; null where it cannot be done. */
  disk: z.strictObject({ write: rate, read: rate.nullable() }).nullable(),
  os: z.string(),
  node: z.string(),
  /** Of the repository, with `-dirty` where it had changes; null outside it. */
  commit: z.string().nullable(),
});
export type Machine = z.infer<typeof machineSchema>;
