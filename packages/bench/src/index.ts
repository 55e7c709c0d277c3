/** Result files (read, compare, show) and synthetic models. Measurements are commands of `cflow-bench`. */
export { type Comparison, compareResults, type MetricChange } from './report/compare.js';
export { benchmarkSections, type NamedResults, speedTable } from './report/markdown.js';
export {
  type BenchResult,
  type Machine,
  type Metric,
  metric,
  RESULT_SCHEMA,
  readResult,
  type Table,
  writeResult,
} from './runner/result.js';
export {
  type StorageName,
  type SynthOptions,
  type SynthResult,
  synthesize,
} from './synth/checkpoint.js';
export { GEOMETRIES, type ModelSize, modelOf } from './synth/geometry.js';
export {
  MODEL_FORMATS,
  type ModelFormat,
  type SynthModelOptions,
  type SynthModelResult,
  synthesizeModel,
} from './synth/model.js';
