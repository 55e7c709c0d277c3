/**
 * Accounts for the fields of config.json: each is used, or is known to change nothing that is computed, or is said to
 * have been ignored; what a class default stands in for is said too.
 */
import { isJsonObject, type JsonObject, type JsonValue } from '../json.js';

/** Fields that change no arithmetic of the text part: bookkeeping, training, generation, other modalities. */
const HARMLESS = new RegExp(
  [
    '^_',
    'dropout|pdrop',
    '_token_id$|_token_index$|_token_ids$',
    '^(use_cache|cache_implementation|initializer_range|pretraining_tp|output_.*|return_dict.*|use_return_dict)$',
    '^(architectures|model_type|auto_map|name_or_path|transformers_version|torch_dtype|dtype|torchscript|use_bfloat16)$',
    '^(tokenizer_class|id2label|label2id|num_labels|problem_type|task_specific_params|finetuning_task|is_decoder)$',
    '^(is_encoder_decoder|add_cross_attention|cross_attention_hidden_size|tie_encoder_decoder|pruned_heads)$',
    '^(chunk_size_feed_forward|gradient_checkpointing|attn_implementation|prefix|sep_token_id|keys_to_ignore.*)$',
    '^(router_aux_loss_coef|router_jitter_noise|aux_loss_alpha|use_mrope|vision_.*|audio_.*|image_.*|video_.*|text_config)$',
    '^(temperature|top_k|top_p|typical_p|repetition_penalty|length_penalty|no_repeat_ngram_size|num_beams|num_beam_.*)$',
    '^(do_sample|early_stopping|max_length|min_length|max_new_tokens|num_return_sequences|diversity_penalty)$',
    '^(encoder_no_repeat_ngram_size|bad_words_ids|suppress_tokens|begin_suppress_tokens|remove_invalid_values)$',
    '^(exponential_decay_length_penalty|tf_legacy_loss|quantization_config|unsloth_.*|rope_parameters|rope_scaling)$',
  ].join('|'),
);

/** Fields whose `false` asks for something else than their absence. */
const SWITCHES =
  /^(causal|is_causal|norm_topk_prob|use_sliding_window|use_rope|rope|scale_attn_weights|normalize_embedding|gated_mlp)$/;

const allFull = (types: JsonValue | undefined) =>
  Array.isArray(types) && types.every((type) => type === 'full_attention');

/** Fields that change nothing beside others, although a class may have them. */
const IDLE = new Map<string, (json: JsonObject) => boolean>([
  [
    'layer_types',
    ({ layer_types, sliding_window, use_sliding_window }) =>
      allFull(layer_types) && (!sliding_window || use_sliding_window === false),
  ],
  // No layer slides, or the window would have been read.
  [
    'sliding_window',
    ({ layer_types, use_sliding_window }) => use_sliding_window === false || allFull(layer_types),
  ],
  ['use_sliding_window', ({ sliding_window }) => !sliding_window],
  [
    'max_window_layers',
    ({ layer_types, use_sliding_window }) => !use_sliding_window || Array.isArray(layer_types),
  ],
  [
    'no_rope_layer_interval',
    ({ no_rope_layers }) => Array.isArray(no_rope_layers) && no_rope_layers.length > 0,
  ],
  // No layer is dense, or the width would have been read.
  ['intermediate_size', ({ moe_intermediate_size }) => typeof moe_intermediate_size === 'number'],
  // Every layer has an override, or the dimension would have been read.
  ['head_dim', ({ per_layer_config }) => isJsonObject(per_layer_config ?? null)],
]);

/** Whether a value asks for nothing. */
function isNeutral(name: string, value: JsonValue): boolean {
  if (value === false) return !SWITCHES.test(name);
  if (value === null || value === '' || value === 0) return true;
  return typeof value === 'object' && Object.keys(value).length === 0;
}

/** What became of the fields of one config.json. */
export class ConfigLedger {
  readonly #json: JsonObject;
  readonly #read = new Set<string>();
  readonly #defaults = new Map<string, JsonValue>();
  readonly #said: string[] = [];

  /** `json`: as it was stored, before spellings were made one and defaults filled in. */
  constructor(json: JsonObject) {
    this.#json = json;
  }

  /** The same fields; each that is looked at counts as used. */
  watched<T extends object>(fields: T): T {
    return new Proxy(fields, {
      get: (target, name, receiver) => {
        if (typeof name === 'string') this.#read.add(name);
        return Reflect.get(target, name, receiver);
      },
    });
  }

  /** A field was used under this name too. */
  use(...names: readonly string[]): void {
    for (const name of names) this.#read.add(name);
  }

  /** `value` stood in for a field that says nothing. */
  defaulted(name: string, value: JsonValue): void {
    this.#defaults.set(name, value);
  }

  say(note: string): void {
    if (!this.#said.includes(note)) this.#said.push(note);
  }

  /**
   * @param defaults of the class, by field
   * @param preferred what a class that has it reads in the place of a field
   */
  notes(
    modelType: string,
    defaults: JsonObject,
    aliases: Readonly<Record<string, readonly string[]>>,
    preferred: Readonly<Record<string, string>>,
  ): string[] {
    for (const [name, other] of Object.entries(preferred)) {
      if (!(other in defaults && this.#read.has(name))) continue;
      const same = this.#json[name] === (this.#json[other] ?? defaults[other]);
      if (!same || other in this.#json) this.use(other);
      if (!same) this.#read.delete(name);
    }
    for (const [name, others] of Object.entries(aliases)) if (this.#read.has(name)) this.use(...others);
    for (const [name, value] of Object.entries(defaults)) {
      const stated = [name, ...(aliases[name] ?? [])].some((spelling) => spelling in this.#json);
      if (!stated && this.#read.has(name) && value !== null) this.defaulted(name, value);
    }
    const filled = [...this.#defaults].map(([name, value]) => `${name} ${JSON.stringify(value)}`);
    const ignored = Object.entries(this.#json).filter(
      ([name, value]) =>
        !this.#read.has(name) &&
        !HARMLESS.test(name) &&
        !IDLE.get(name)?.(this.#json) &&
        !isNeutral(name, value),
    );
    return [
      ...(filled.length > 0
        ? [`config.json does not state ${filled.join(', ')}: defaults of ${modelType}`]
        : []),
      ...(ignored.length > 0
        ? [`config.json: ${ignored.map(([name]) => name).join(', ')} without effect in ${modelType}: ignored`]
        : []),
      ...this.#said,
    ];
  }
}
