// The tile as the kernels read it (docs/format.md, report §3.2): `header | f16 scales | data`, row-major, at most
// 128 x 256 weights. A stripe is 128 output rows (fewer at the end): its column tiles stand one behind the other.
//
// The same numbers stand in packages/format/src/tiles/dtype.ts; a test compares the two through the addon.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cflow {

/// Dtype of tiles; values are the header's quant_type.
enum class Dtype : uint8_t { q4_0 = 0, q8_0 = 1, f16 = 2, f32 = 3 };

constexpr int kDtypeCount = 4;
constexpr int kTileRows = 128;
constexpr int kTileCols = 256;
constexpr int kTileHeaderBytes = 16;
/// Weights that share a scale in q4_0 and q8_0.
constexpr int kGroup = 32;

constexpr int ceil_div(int n, int d) { return (n + d - 1) / d; }

/// Bytes of one row of a tile of `cols` columns, without its scales.
constexpr size_t row_bytes(Dtype dtype, int cols) {
  switch (dtype) {
    case Dtype::q4_0: return 16u * static_cast<size_t>(ceil_div(cols, kGroup));
    case Dtype::q8_0: return 32u * static_cast<size_t>(ceil_div(cols, kGroup));
    case Dtype::f16: return 2u * static_cast<size_t>(cols);
    case Dtype::f32: return 4u * static_cast<size_t>(cols);
  }
  return 0;
}

/// f16 scales of one row of a tile.
constexpr int row_scales(Dtype dtype, int cols) {
  return dtype == Dtype::q4_0 || dtype == Dtype::q8_0 ? ceil_div(cols, kGroup) : 0;
}

/// Bytes of a tile, header included.
constexpr size_t tile_bytes(Dtype dtype, int rows, int cols) {
  return kTileHeaderBytes +
         static_cast<size_t>(rows) * (row_bytes(dtype, cols) + 2u * static_cast<size_t>(row_scales(dtype, cols)));
}

/// Bytes of a stripe of `rows` output rows and `cols` columns in all.
constexpr size_t stripe_bytes(Dtype dtype, int rows, int cols) {
  const int full = cols / kTileCols;
  const int rest = cols % kTileCols;
  return static_cast<size_t>(full) * tile_bytes(dtype, rows, kTileCols) +
         (rest ? tile_bytes(dtype, rows, rest) : 0);
}

}  // namespace cflow
