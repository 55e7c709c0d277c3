#include "quantize.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "../kernels/kernels.h"

namespace cflow {
namespace {

/// MAX_COLUMNS of packages/format/src/limits.ts.
constexpr uint32_t kMaxColumns = 1u << 20;

/// Element types of checkpoints, little endian.
enum class Input : uint8_t { bf16, f16, f32 };

std::optional<Input> input_called(const std::string& name) {
  if (name == "BF16") return Input::bf16;
  if (name == "F16") return Input::f16;
  if (name == "F32") return Input::f32;
  return std::nullopt;
}

constexpr size_t input_bytes(Input input) { return input == Input::f32 ? 4 : 2; }

/// The largest magnitude that a dtype holds, as packages/format/src/tiles/tile.ts has it.
constexpr float kLargest[kDtypeCount] = {7 * 65504.0f, 127 * 65504.0f, 65519.0f, std::numeric_limits<float>::max()};

struct Stripe {
  /// [rows, cols] row-major.
  const uint8_t* weights;
  Input input;
  int rows;
  int cols;
  Dtype dtype;
  bool scale_search;
  bool zero_nonfinite;
  uint8_t* out;
};

/// Columns col .. col + width of a stripe, `padded` with those that fill up the last group.
struct Tile {
  int col;
  int width;
  int padded;
};

/// Rows that are encoded at once: 16 KiB of f32 stay in the first-level cache.
constexpr int kRowsAtOnce = 16;

struct Block {
  alignas(64) float values[kRowsAtOnce * kTileCols];
  alignas(64) uint16_t halves[kRowsAtOnce * kTileCols];
};

void widen(const Kernels& kernels, Input input, const uint8_t* from, int n, float* to) {
  const auto count = static_cast<size_t>(n);
  switch (input) {
    case Input::bf16: return kernels.bf16_to_f32(reinterpret_cast<const uint16_t*>(from), count, to);
    case Input::f16: return kernels.f16_to_f32(reinterpret_cast<const uint16_t*>(from), count, to);
    case Input::f32: std::memcpy(to, from, 4 * count); return;
  }
}

/// Rows [row, row + rows) of a tile as f32, [rows, padded].
void load_block(const Kernels& kernels, const Stripe& stripe, const Tile& tile, int row, int rows, Block& block) {
  const size_t bytes = input_bytes(stripe.input);
  for (int r = 0; r < rows; r++) {
    const size_t at = static_cast<size_t>(row + r) * static_cast<size_t>(stripe.cols) + static_cast<size_t>(tile.col);
    float* to = block.values + r * tile.padded;
    widen(kernels, stripe.input, stripe.weights + at * bytes, tile.width, to);
    std::fill(to + tile.width, to + tile.padded, 0.0f);
  }
}

/// The largest magnitude as bits, NaN and Inf above all.
uint32_t largest_bits(const float* values, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    std::memcpy(&bits, values + i, 4);
    most = std::max(most, bits & 0x7fffffffu);
  }
  return most;
}

void zero_nonfinite(const Kernels& kernels, float* values, size_t n) {
  for (size_t at = 0; (at += kernels.find_nonfinite(values + at, n - at)) < n;) values[at] = 0.0f;
}

/// Where a block goes behind the header of its tile: scales of all rows first, then data.
struct Place {
  uint16_t* scales;
  uint8_t* data;
  size_t groups;
};

Place place_of(const Stripe& stripe, const Tile& tile, int row, int rows, uint8_t* body) {
  const auto scales_each = static_cast<size_t>(row_scales(stripe.dtype, tile.width));
  auto* scales = reinterpret_cast<uint16_t*>(body + 2 * static_cast<size_t>(row) * scales_each);
  uint8_t* data = body + 2 * static_cast<size_t>(stripe.rows) * scales_each +
                  static_cast<size_t>(row) * row_bytes(stripe.dtype, tile.width);
  return {scales, data, static_cast<size_t>(rows) * scales_each};
}

/// Writes a block; returns its largest magnitude, as bits.
uint32_t encode_block(const Kernels& kernels, const Stripe& stripe, const Block& block, size_t values,
                      const Place& place) {
  switch (stripe.dtype) {
    case Dtype::q4_0:
      return kernels.encode_q4_0(block.values, place.groups, stripe.scale_search, place.scales, place.data);
    case Dtype::q8_0: return kernels.encode_q8_0(block.values, place.groups, place.scales, place.data);
    case Dtype::f16: kernels.f32_to_f16(block.values, values, reinterpret_cast<uint16_t*>(place.data)); break;
    case Dtype::f32: std::memcpy(place.data, block.values, 4 * values); break;
  }
  return largest_bits(block.values, values);
}

/// q4_0 from whole groups of bf16, without a detour over f32.
uint32_t encode_halves(const Kernels& kernels, const Stripe& stripe, const Tile& tile, int row, int rows, Block& block,
                       const Place& place) {
  const size_t bytes = 2 * static_cast<size_t>(tile.width);
  for (int r = 0; r < rows; r++) {
    const size_t at = static_cast<size_t>(row + r) * static_cast<size_t>(stripe.cols) + static_cast<size_t>(tile.col);
    std::memcpy(block.halves + r * tile.width, stripe.weights + 2 * at, bytes);
  }
  return kernels.encode_q4_0_bf16(block.halves, place.groups, stripe.scale_search, place.scales, place.data);
}

/// Writes some rows of a tile; false if a weight cannot be stored.
bool encode_rows(const Kernels& kernels, const Stripe& stripe, const Tile& tile, int row, int rows, Block& block,
                 uint8_t* body) {
  const auto largest = std::bit_cast<uint32_t>(kLargest[static_cast<int>(stripe.dtype)]);
  const Place place = place_of(stripe, tile, row, rows, body);
  if (stripe.dtype == Dtype::q4_0 && stripe.input == Input::bf16 && tile.width == tile.padded &&
      encode_halves(kernels, stripe, tile, row, rows, block, place) <= largest) {
    return true;
  }
  const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(tile.padded);
  load_block(kernels, stripe, tile, row, rows, block);
  if (encode_block(kernels, stripe, block, values, place) <= largest) return true;
  if (!stripe.zero_nonfinite) return false;
  zero_nonfinite(kernels, block.values, values);
  return encode_block(kernels, stripe, block, values, place) <= largest;
}

/// Writes all tiles but their headers; false as soon as a weight cannot be stored: what has been written is then of no use.
bool quantize(const Kernels& kernels, const Stripe& stripe) {
  Block block;
  uint8_t* out = stripe.out;
  for (int col = 0; col < stripe.cols; col += kTileCols) {
    const int width = std::min(kTileCols, stripe.cols - col);
    const int groups = row_scales(stripe.dtype, width);
    const Tile tile{col, width, groups ? groups * kGroup : width};
    for (int row = 0; row < stripe.rows; row += kRowsAtOnce) {
      const int rows = std::min(kRowsAtOnce, stripe.rows - row);
      if (!encode_rows(kernels, stripe, tile, row, rows, block, out + kTileHeaderBytes)) return false;
    }
    out += tile_bytes(stripe.dtype, stripe.rows, width);
  }
  return true;
}

/// Arguments of quantizeStripe, in order.
enum Argument : size_t {
  kWeights,
  kInput,
  kRows,
  kCols,
  kDtype,
  kScaleSearch,
  kZeroNonfinite,
  kOut,
};

[[noreturn]] void refuse(Napi::Env env, const std::string& problem) {
  throw Napi::TypeError::New(env, "quantizeStripe: " + problem);
}

/// An integer from `least` to `most`.
uint32_t integer(const Napi::CallbackInfo& info, size_t index, uint32_t least, uint32_t most) {
  const double value = info[index].IsNumber() ? info[index].As<Napi::Number>().DoubleValue() : -1.0;
  if (!(value >= least && value <= most) || value != static_cast<double>(static_cast<uint32_t>(value))) {
    refuse(info.Env(), "argument " + std::to_string(index) + " is not an integer from " + std::to_string(least) +
                           " to " + std::to_string(most));
  }
  return static_cast<uint32_t>(value);
}

bool flag(const Napi::CallbackInfo& info, size_t index) {
  if (!info[index].IsBoolean()) refuse(info.Env(), "argument " + std::to_string(index) + " is not a boolean");
  return info[index].As<Napi::Boolean>().Value();
}

/// The bytes of an Uint8Array that must have exactly `expected` of them.
uint8_t* bytes(const Napi::CallbackInfo& info, size_t index, size_t expected) {
  const Napi::Value value = info[index];
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) {
    refuse(info.Env(), "argument " + std::to_string(index) + " is not an Uint8Array");
  }
  auto array = value.As<Napi::Uint8Array>();
  if (array.ByteLength() != expected) {
    refuse(info.Env(), "argument " + std::to_string(index) + " has " + std::to_string(array.ByteLength()) +
                           " bytes, expected " + std::to_string(expected));
  }
  return array.Data();
}

/// CFLOW_ISA as in the engine; a name that this CPU does not have falls back to its best here, since the bytes are the
/// same, and the engine is where it is refused.
const Kernels& kernels_to_use() {
  static const Kernels* const chosen = [] {
    const char* name = std::getenv("CFLOW_ISA");
    const Kernels* named = name ? find_kernels(name) : nullptr;
    return named ? named : find_kernels("");
  }();
  return *chosen;
}

/// quantizeStripe(weights: Uint8Array, input: 'BF16' | 'F16' | 'F32', rows, cols, dtype, scaleSearch,
/// zeroNonfinite, out: Uint8Array): boolean. Fills `out` with the stripe's tiles, and leaves the place of each tile's
/// header as it is. false: a weight is not finite or too large for the dtype, and packages/format says which. Throws TypeError for wrong arguments.
Napi::Value quantize_stripe(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::optional<Input> input =
      info[kInput].IsString() ? input_called(info[kInput].As<Napi::String>().Utf8Value()) : std::nullopt;
  if (!input) refuse(env, "argument 1 is not BF16, F16 or F32");
  Stripe stripe{};
  stripe.input = *input;
  stripe.rows = static_cast<int>(integer(info, kRows, 1, kTileRows));
  stripe.cols = static_cast<int>(integer(info, kCols, 1, kMaxColumns));
  stripe.dtype = static_cast<Dtype>(integer(info, kDtype, 0, kDtypeCount - 1));
  stripe.scale_search = flag(info, kScaleSearch);
  stripe.zero_nonfinite = flag(info, kZeroNonfinite);
  const size_t values = static_cast<size_t>(stripe.rows) * static_cast<size_t>(stripe.cols);
  stripe.weights = bytes(info, kWeights, values * input_bytes(*input));
  stripe.out = bytes(info, kOut, stripe_bytes(stripe.dtype, stripe.rows, stripe.cols));
  return Napi::Boolean::New(env, quantize(kernels_to_use(), stripe));
}

}  // namespace

void export_quantizer(Napi::Env env, Napi::Object exports) {
  exports.Set("quantizeStripe", Napi::Function::New(env, quantize_stripe, "quantizeStripe"));
}

}  // namespace cflow
